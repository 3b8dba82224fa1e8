"""Passes of a model: which spans share one, what it computes, and what is awaited of it."""
