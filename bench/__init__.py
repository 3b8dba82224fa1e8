"""Measurements of Baton from outside: a client like any other, which knows baton.v1 and nothing else of it."""
