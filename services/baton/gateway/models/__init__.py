"""Which models the gateway serves, and what makes text of their tokens."""
