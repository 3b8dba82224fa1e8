"""Calls of tools as models write them: one parser per format, and the grammar that forces a model to write it."""
