"""From a request to text: tokens of the prompt, generation, text of the answer."""
