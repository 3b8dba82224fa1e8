"""exo's cluster and bench endpoints."""
