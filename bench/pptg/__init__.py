"""`baton bench pptg`: prompt and generation rates by exo-bench's method."""
