"""gRPC: channels, servers, status mapping, and the conversion between messages and domain values."""
