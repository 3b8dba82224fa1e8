"""The router: knows every node's speed and load, and places requests by predicted seconds."""
