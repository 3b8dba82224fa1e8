"""Which positions of which sequences the next pass computes."""
