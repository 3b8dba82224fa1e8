"""The APIs that clients speak, and what they have in common."""
