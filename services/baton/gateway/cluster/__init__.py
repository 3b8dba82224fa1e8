"""What the gateway asks of routers and decode nodes."""
