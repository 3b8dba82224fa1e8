"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkpoints() -> Mapping[str, Path]:
    """Return the folder of each tiny checkpoint by name; see `tests/checkpoints.py`."""
    from checkpoints import CHECKPOINT_NAMES, checkpoint

    return {name: checkpoint(name) for name in CHECKPOINT_NAMES}
