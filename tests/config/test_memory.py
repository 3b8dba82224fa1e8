"""Memory that a process may use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from baton.config.memory import usable_memory
from config.group_files import write


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of control groups, on a machine with 9,000 of 12,000 bytes free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=12_000, available=9_000))
    (tmp_path / "groups").mkdir()
    return tmp_path / "groups"


def test_without_bounds_the_machine_counts(groups: Path) -> None:
    """No file of a control group is there, as on a Mac."""
    assert usable_memory(groups, groups / "none") == (12_000, 9_000)


@pytest.mark.parametrize(
    ("limit", "usable"),
    [("max", (12_000, 9_000)), ("4000", (4_000, 1_000)), ("2000", (2_000, 0)), ("99999999", (12_000, 9_000))],
)
def test_the_limit_of_a_container_bounds(groups: Path, limit: str, usable: tuple[int, int]) -> None:
    """Of what it allows, 3,000 bytes are used; one that allows more than the machine has bounds nothing."""
    write(groups / "memory.max", f"{limit}\n")
    write(groups / "memory.current", "3000\n")

    assert usable_memory(groups, groups / "none") == usable


def test_the_narrowest_group_around_a_process_bounds(groups: Path) -> None:
    """As of a systemd slice whose units share it; the unit itself has no limit."""
    own = write(groups.parent / "own", "0::/machine.slice/node.scope\n")
    write(groups / "machine.slice/memory.max", "6000\n")
    write(groups / "machine.slice/memory.current", "5000\n")
    write(groups / "machine.slice/node.scope/memory.max", "max\n")
    write(groups / "machine.slice/node.scope/memory.current", "2000\n")

    assert usable_memory(groups, own) == (6_000, 1_000)


def test_files_that_were_read_do_not_count_as_used(groups: Path) -> None:
    """A container that has just loaded a model is full of its files, which the kernel drops when memory is wanted."""
    write(groups / "memory.max", "6000\n")
    write(groups / "memory.current", "6000\n")
    write(groups / "memory.stat", "anon 500\nfile 5500\nshmem 1000\ninactive_file 4000\nactive_file 500\n")

    assert usable_memory(groups, groups / "none") == (6_000, 4_500)


def test_groups_of_version_1_bound(groups: Path) -> None:
    """Hosts that still have them; what is no limit there is a number beyond any machine."""
    own = write(groups.parent / "own", "4:memory:/docker/a\n3:cpu,cpuacct:/docker/a\n")
    write(groups / "memory/memory.limit_in_bytes", "9223372036854771712")
    write(groups / "memory/memory.usage_in_bytes", "100000")
    write(groups / "memory/docker/a/memory.limit_in_bytes", "7000")
    write(groups / "memory/docker/a/memory.usage_in_bytes", "4000")
    write(groups / "memory/docker/a/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n")

    assert usable_memory(groups, own) == (7_000, 3_500)
