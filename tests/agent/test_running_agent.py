"""Which agent serves a state folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.agent.running_agent import agent_process, running_agent
from baton.errors import UnavailableError


def test_one_agent_serves_a_folder_and_can_be_found(tmp_path: Path) -> None:
    """By its process id, for as long as it runs."""
    assert agent_process(tmp_path) == 0
    with running_agent(tmp_path):
        assert agent_process(tmp_path) == os.getpid()
        with pytest.raises(UnavailableError, match="runs already: `baton leave` ends it"), running_agent(tmp_path):
            raise AssertionError("the folder is taken")

    assert agent_process(tmp_path) == 0
