"""The gateway: OpenAI-compatible REST and the public gRPC API in front of router and decode nodes."""
