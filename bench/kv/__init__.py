"""What KV costs: its transports, its tiers, its formats on the wire, and those who generate beside it."""
