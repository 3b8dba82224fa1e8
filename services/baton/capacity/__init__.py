"""What work costs, in seconds: model shapes, node profiles, cost formulas and the placement that follows. Pure."""
