"""The decode node: generates tokens; takes a prompt's KV from a prefill node or computes it itself."""
