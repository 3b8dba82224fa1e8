"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "baton", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("baton")
"""What a property test finds depends on the code alone: neither on the machine's pace nor on chance.

`--hypothesis-profile=default` looks for what the fixed examples miss.
"""


@pytest.fixture(scope="session")
def checkpoints() -> Mapping[str, Path]:
    """Return the folder of each tiny checkpoint by name; see `tests/checkpoints.py`."""
    from checkpoints import CHECKPOINT_NAMES, checkpoint

    return {name: checkpoint(name) for name in CHECKPOINT_NAMES}
