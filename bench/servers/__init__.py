"""Whole servers beside others', HTTP to HTTP, and what a token costs outside the engine."""
