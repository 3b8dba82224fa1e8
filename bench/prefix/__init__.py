"""What prefixes in common are worth: `baton bench prefix` in virtual time, `burst` and `pull` on real nodes."""
