"""A child ends with its parent."""

from __future__ import annotations

import subprocess
import sys

import pytest

from baton.agent.child import PARENT_VARIABLE, die_with_parent

_CHILD = (
    "from baton.agent.child import die_with_parent; die_with_parent(); "
    "print('tied', flush=True); import time; time.sleep(60)"
)
_PARENT = f"""
import os, subprocess, sys, time
from baton.agent.child import parent_environment
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], env=dict(os.environ, **parent_environment()))
time.sleep(60)
"""


def test_a_child_of_a_killed_parent_is_gone() -> None:
    """The pipe that only the grandchild still holds reaches its end when it dies."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"tied\n"

        parent.kill()

        assert parent.stdout.read() == b""


def test_nothing_happens_without_a_parent_that_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service started by hand is tied to nobody."""
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)

    die_with_parent()
