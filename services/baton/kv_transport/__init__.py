"""How KV frames travel between nodes: over sockets of their own, through shared memory, or by the gRPC library."""
