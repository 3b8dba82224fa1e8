"""The KV cache as data: layout, block hashes, block pool, prefix cache, stream order. Pure: no wire, no framework."""
