"""What commands ask a running cluster: its router, gateway, agents, nodes and links."""
