"""Baton's images: how they are built, and a trial of the build on a machine without a builder."""
