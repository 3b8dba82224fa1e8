"""Cores and memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from baton.config.container_limits import usable_cores, usable_memory
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


@pytest.fixture
def memory_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of control memory_groups, on a machine with 9,000 of 12,000 bytes free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=12_000, available=9_000))
    (tmp_path / "memory_groups").mkdir()
    return tmp_path / "memory_groups"


def test_without_bounds_the_machine_counts(memory_groups: Path) -> None:
    """No file of a control group is there, as on a Mac."""
    assert usable_memory(memory_groups, memory_groups / "none") == (12_000, 9_000)


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("max", (12_000, 9_000)), ("4000", (4_000, 1_000)), ("2000", (2_000, 0)), ("99999999", (12_000, 9_000))],
)
def test_the_limit_of_a_container_bounds(memory_groups: Path, limit: str, usable: tuple[int, int]) -> None:
    """Of what it allows, 3,000 bytes are used; one that allows more than the machine has bounds nothing."""
    write(memory_groups / "memory.max", f"{limit}\n")
    write(memory_groups / "memory.current", "3000\n")

    assert usable_memory(memory_groups, memory_groups / "none") == usable


def test_the_narrowest_group_around_a_process_bounds_memory(memory_groups: Path) -> None:
    """As of a systemd slice whose units share it; the unit itself has no limit."""
    own = write(memory_groups.parent / "own", "0::/machine.slice/node.scope\n")
    write(memory_groups / "machine.slice/memory.max", "6000\n")
    write(memory_groups / "machine.slice/memory.current", "5000\n")
    write(memory_groups / "machine.slice/node.scope/memory.max", "max\n")
    write(memory_groups / "machine.slice/node.scope/memory.current", "2000\n")

    assert usable_memory(memory_groups, own) == (6_000, 1_000)


def test_files_that_were_read_do_not_count_as_used(memory_groups: Path) -> None:
    """A container that has just loaded a model is full of its files, which the kernel drops when memory is wanted."""
    write(memory_groups / "memory.max", "6000\n")
    write(memory_groups / "memory.current", "6000\n")
    write(memory_groups / "memory.stat", "anon 500\nfile 5500\nshmem 1000\ninactive_file 4000\nactive_file 500\n")

    assert usable_memory(memory_groups, memory_groups / "none") == (6_000, 4_500)


def test_groups_of_version_1_bound_memory(memory_groups: Path) -> None:
    """Hosts that still have them; what is no limit there is a number beyond any machine."""
    own = write(memory_groups.parent / "own", "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n")
    write(memory_groups / "memory/memory.limit_in_bytes", "9223372036854771712")
    write(memory_groups / "memory/memory.usage_in_bytes", "100000")
    write(memory_groups / "memory/docker/a/memory.limit_in_bytes", "7000")
    write(memory_groups / "memory/docker/a/memory.usage_in_bytes", "4000")
    write(memory_groups / "memory/docker/a/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n")

    assert usable_memory(memory_groups, own) == (7_000, 3_500)
