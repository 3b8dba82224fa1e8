"""KV beside the passes: host memory, disk, what arrives, and what other nodes ask for."""
