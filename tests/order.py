"""What a test run consists of, in which order, and what of it a worker runs as a whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum, auto
from functools import cache
from pathlib import Path

import pytest

RUNS_ALL = "BATON_MATRIX" in os.environ
"""Whether every combination runs (`make matrix`), in place of a sample in which each two factors still meet."""
_LONG_FOLDERS = frozenset({"exactness", "system"})
_SESSION_CLUSTERS = frozenset({"demo_cluster", "exact_cluster", "llama_cluster", "mock_cluster"})


class _Turn(IntEnum):
    """When a file is run."""

    FIRST = auto()
    """It may take a minute: begun last, it would keep one worker busy while the others have nothing to do."""
    BETWEEN = auto()
    """It takes seconds."""
    LAST = auto()
    """It uses a cluster that runs from its first use to the end of the run, and has its share of the processor."""


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests file by file: long files, the others, and those that share a cluster, who kill its nodes last.

    Files of one turn, and the tests of a file, keep their order.
    """
    with_cluster = {item.path for item in items if _uses_session_cluster(item)}
    return sorted(items, key=lambda item: (_turn_of(item.path, with_cluster), item.path.parent.name == "faults"))


@cache
def unit_of(file: Path) -> str:
    """Return what one worker runs as a whole: a file, or all files that share a cluster, which starts once then."""
    text = file.read_text() if "system" in file.parts else ""
    return next((cluster for cluster in sorted(_SESSION_CLUSTERS) if cluster in text), str(file))


def _turn_of(path: Path, with_cluster: set[Path]) -> _Turn:
    if path in with_cluster:
        return _Turn.LAST
    return _Turn.BETWEEN if _LONG_FOLDERS.isdisjoint(path.parts) else _Turn.FIRST


def _uses_session_cluster(item: pytest.Item) -> bool:
    return not _SESSION_CLUSTERS.isdisjoint(getattr(item, "fixturenames", ()))
