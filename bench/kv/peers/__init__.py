"""Other ways to move a KV cache, measured beside Baton's: each file is run by the Python that has its package."""
