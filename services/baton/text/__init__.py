"""Text and tokens: tokenizers, chat templates, incremental detokenization, stop strings. Pure: no grpc, no protobuf, no torch."""
