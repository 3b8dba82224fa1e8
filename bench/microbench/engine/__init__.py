"""Measures an engine alone, in its own process: host time per pass."""
