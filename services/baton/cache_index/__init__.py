"""The cache index: which node holds which KV block. Soft state, rebuilt from the nodes' event streams."""
