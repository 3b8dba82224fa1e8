"""What a decision of the router costs its thread."""
