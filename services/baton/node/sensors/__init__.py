"""What a node's machine does meanwhile: load, temperature, power, memory."""
