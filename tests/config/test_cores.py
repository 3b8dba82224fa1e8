"""Cores that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton.config.cores import usable_cores
from config.group_files import write


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of control groups, on a machine of 16 cores that are all allowed."""
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_without_bounds_all_cores_are_used(groups: Path) -> None:
    """No file of a control group is there, as on a Mac."""
    assert usable_cores(groups, groups / "none") == (16, "16 in the machine")


def test_affinity_bounds(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores that a scheduler gave to others are not counted."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 9}, raising=False)

    assert usable_cores(groups, groups / "none") == (3, "3 of 16 by affinity")


@pytest.mark.parametrize(("told", "count"), [("250000 100000", 3), ("50000 100000", 1), ("max 100000", 16)])
def test_the_quota_of_a_container_bounds(groups: Path, told: str, count: int) -> None:
    """A pod with two CPUs and a half of a machine with 16 may use three cores, one with half a CPU one."""
    write(groups / "cpu.max", told)

    assert usable_cores(groups, groups / "none").num_cores == count


def test_the_narrowest_group_around_a_process_bounds(groups: Path) -> None:
    """As of a systemd slice, seen from outside of it."""
    own = write(groups.parent / "own", "0::/machine.slice/node.scope\n")
    write(groups / "machine.slice/cpu.max", "400000 100000\n")
    write(groups / "machine.slice/node.scope/cpu.max", "max 100000\n")

    assert usable_cores(groups, own) == (4, "4 of 16 by the quota of the control group")


@pytest.mark.parametrize(("quota", "count"), [("600000", 6), ("-1", 16)])
def test_groups_of_version_1_bound(groups: Path, quota: str, count: int) -> None:
    """Hosts that still have them; -1 is no quota."""
    own = write(groups.parent / "own", "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n")
    write(groups / "cpu/docker/a/cpu.cfs_quota_us", quota)
    write(groups / "cpu/docker/a/cpu.cfs_period_us", "100000")

    assert usable_cores(groups, own).num_cores == count
