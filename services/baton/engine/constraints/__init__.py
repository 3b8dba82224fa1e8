"""Structured output: the language that an output must be a sentence of."""
