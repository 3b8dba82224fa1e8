"""What carries KV: Baton's transports beside a raw socket."""
