"""What KV costs: its transports, its tiers, its formats on the wire, and prefixes of other nodes."""
