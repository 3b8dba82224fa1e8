"""Text and tokens: tokenizers, chat templates, incremental detokenization, stop strings. Pure: no wire, no framework."""
