"""Measuring and serving exclude each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.agent.machine_lock import agent_process, machine_used_for, running_agent
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


def test_one_agent_serves_a_folder_and_can_be_found(tmp_path: Path) -> None:
    """By its process id, for as long as it runs."""
    assert agent_process(tmp_path) == 0
    with running_agent(tmp_path):
        assert agent_process(tmp_path) == os.getpid()
        with pytest.raises(UnavailableError, match="runs already: `baton leave` ends it"), running_agent(tmp_path):
            raise AssertionError("the folder is taken")

    assert agent_process(tmp_path) == 0
