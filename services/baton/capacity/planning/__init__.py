"""Which machine should hold which model: what is wanted, what it costs, the best plan, and when a move is worth it."""
