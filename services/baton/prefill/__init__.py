"""The prefill node: computes prompts and streams their KV out, layer by layer, while it computes."""
