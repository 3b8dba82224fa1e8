"""The protocol between Baton's own processes; what clients use is baton.v1."""
