"""What models are wanted, where each stands, and which order each machine gets."""
