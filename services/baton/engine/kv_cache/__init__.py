"""KV beside the passes: host memory, disk, what arrives and what others ask for."""
