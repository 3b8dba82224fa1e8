"""What prefill and decode nodes share: an engine with its model, a place at the router, a voice in the cache index."""
