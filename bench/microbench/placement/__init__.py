"""What a decision of the router costs its thread, and whether it is the reference's."""
