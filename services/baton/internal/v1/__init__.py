"""Generated from protos/baton/internal/v1 by `make protos`."""
