"""How many CPUs a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.worker.cpus import usable_cpus


@pytest.mark.parametrize(("text", "expected"), [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1)])
def test_a_container_uses_what_it_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    """A pod with two CPUs of a machine with 64 starts no 63 threads."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(64)), raising=False)
    (tmp_path / "cpu.max").write_text(text + "\n")

    assert usable_cpus(tmp_path / "cpu.max") == expected


@pytest.mark.parametrize("text", ["max 100000", "", "100000 0"])
def test_without_a_quota_all_that_it_may_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """No quota, no such file, or one that says nothing."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {3, 5, 7}, raising=False)
    if text:
        (tmp_path / "cpu.max").write_text(text)

    assert usable_cpus(tmp_path / "cpu.max") == 3
