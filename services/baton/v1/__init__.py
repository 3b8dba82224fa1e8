"""Generated from protos/baton/v1 by `make protos`."""
