"""Runs the command line as `python -m baton.cli`."""

from __future__ import annotations

from baton.cli.main import main

main()
