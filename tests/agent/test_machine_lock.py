"""Measuring and serving exclude each other."""

from __future__ import annotations

from pathlib import Path

from baton.agent.machine_lock import machine_used_for
from baton.errors import UnavailableError


def test_several_serve_at_once_and_nobody_measures_meanwhile(tmp_path: Path) -> None:
    """The message says what is in the way; afterwards it is not."""
    with machine_used_for("serving", tmp_path), machine_used_for("serving", tmp_path):
        assert _why_not("measuring", tmp_path).startswith("a worker serves")
    with machine_used_for("measuring", tmp_path):
        assert "measures" in _why_not("serving", tmp_path)

    assert _why_not("serving", tmp_path) == ""


def _why_not(purpose: str, folder: Path) -> str:
    try:
        with machine_used_for(purpose, folder):
            return ""
    except UnavailableError as error:
        return error.message
