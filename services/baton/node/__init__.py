"""What prefill and decode nodes share: one engine, its place in the cluster, the sensors of its machine."""
