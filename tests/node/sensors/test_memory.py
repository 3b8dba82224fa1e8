"""What a node does about the system's judgement that memory is short."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

import pytest

from baton.config.container_limits import Memory
from baton.node.sensors import memory
from baton.node.sensors.memory import open_judge, open_pressure, watch_pressure


class Libc:
    """Answers as macOS's C library does, with a level or an error."""

    def __init__(self, level: int, status: int = 0) -> None:
        self._level = level
        self._status = status

    def sysctlbyname(self, name: bytes, value: Any, *_: Any) -> int:
        """Write the level."""
        assert name == b"kern.memorystatus_vm_pressure_level"
        value._obj.value = self._level
        return self._status


def told_of(*read: bool) -> list[bool]:
    """Return what is told where the system says these one after the other."""
    answers = list(read)

    async def sleep(_: float) -> None:
        if not answers:
            raise asyncio.CancelledError

    told: list[bool] = []
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_pressure(lambda: answers.pop(0), told.append, sleep))
    return told


@pytest.mark.parametrize(("level", "is_short"), [(1, False), (2, False), (4, True)])
def test_memory_is_short_where_the_kernel_calls_it_critical(
    monkeypatch: pytest.MonkeyPatch, level: int, is_short: bool
) -> None:
    """Normal and warning are states in which a large model may run for hours."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc(level))
    read = open_pressure("darwin")

    assert read is not None
    assert read() is is_short


def test_an_error_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A level that was not read is no level: else a node would take one request at a time for ever."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc(0, status=-1))
    read = open_pressure("darwin")

    assert read is not None
    assert not read()
    assert "memory_pressure_unknown" in caplog.text
    assert not read()
    assert caplog.text.count("memory_pressure_unknown") == 1


@pytest.mark.parametrize(("level", "is_short"), [(1, False), (2, False), (4, True)])
def test_the_kernel_judges_where_it_does_however_few_pages_are_free(
    monkeypatch: pytest.MonkeyPatch, level: int, is_short: bool
) -> None:
    """A Mac that is well may have few free pages: what arrives does not wait for them."""
    left = [Memory(1 << 34, 1 << 33)]
    monkeypatch.setattr(memory, "usable_memory", lambda: left[0])
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc(level))
    judge = open_judge("darwin")
    left[0] = Memory(1 << 34, 0)

    assert judge() is is_short


def test_elsewhere_memory_is_short_once_a_tenth_is_left_of_what_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes beside it, and others, have used the rest."""
    left = [Memory(1000, 500)]
    monkeypatch.setattr(memory, "usable_memory", lambda: left[0])
    judge = open_judge("linux")

    assert [judge() for left[0] in (Memory(1000, 500), Memory(1000, 50), Memory(1000, 49))] == [False, False, True]


def test_other_systems_do_not_judge() -> None:
    """Where nothing is read, the watch ends at once and nobody is told anything."""
    told: list[bool] = []

    assert open_pressure("linux") is None
    asyncio.run(watch_pressure(None, told.append))
    assert told == []


def test_memory_that_stays_short_is_told_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """For who computes on keeps anew what it gave back; the log has a line for each change."""
    assert told_of(False, True, True, True, False, False) == [True, True, True, False]
    assert [line for line in caplog.messages if "is_short" in line] == [
        "memory_pressure is_short=True",
        "memory_pressure is_short=False",
    ]


def test_who_was_never_short_of_memory_is_told_nothing() -> None:
    """A node need not be told that it is as it began."""
    assert told_of(False, False) == []
