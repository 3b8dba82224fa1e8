"""KV of a prompt that arrives from another node: streams of prefill nodes and pulls of cached blocks."""
