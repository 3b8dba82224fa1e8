"""What a token costs outside the engine."""
