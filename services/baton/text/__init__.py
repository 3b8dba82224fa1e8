"""Text and tokens: tokenizers, chat templates, incremental detokenization, stop strings. No wire, no framework."""
