"""Measures an engine alone, each lesson of its asynchronous core on and off; run by `python -m baton.engine.gauge`."""
