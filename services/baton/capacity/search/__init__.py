"""Branch and bound: decides as `placement.place` does, at a fraction of its cost."""
