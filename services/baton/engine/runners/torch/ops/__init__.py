"""What a device does for a model: `cuda`, `cpu` and `eager` hold the ways, and one of them is chosen once per model."""
