"""What prefixes in common are worth: `python -m bench.prefix` in virtual time, `burst` and `pull` on real nodes."""
