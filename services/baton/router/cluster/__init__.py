"""What placement sees of registered nodes and the ways between them, kept until something about them changes."""
