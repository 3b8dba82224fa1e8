"""Decoding on MLX beside mlx-lm's own batches, and models with random weights for whoever needs one."""
