"""Modules that stand in for mlx-lm's own, and what is done to a loaded model."""
