"""K and V on MLX: blocks, rows of decode batches, and what attention reads of them."""
