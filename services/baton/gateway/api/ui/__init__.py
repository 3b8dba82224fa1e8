"""The page /ui."""
