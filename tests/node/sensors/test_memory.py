"""What a node does about the system's judgement that memory is short."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from baton.node.sensors.memory import open_pressure, watch_pressure


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


async def no_sleep(_: float) -> None:
    """Let others run."""


def told_of(*read: bool | OSError) -> list[bool]:
    """Return what is told where the system says these one after the other, the last of which is an error."""
    answers = iter(read)

    def next_answer() -> bool:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    told: list[bool] = []
    asyncio.run(watch_pressure(next_answer, told.append, no_sleep))
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


def test_an_error_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that was not read is no level."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Libc(4, status=-1))
    read: Callable[[], bool] | None = open_pressure("darwin")

    assert read is not None
    with pytest.raises(OSError, match=r"kern\.memorystatus_vm_pressure_level"):
        read()


def test_other_systems_do_not_judge() -> None:
    """Where nothing is read, the watch ends at once and nobody is told anything."""
    told: list[bool] = []

    assert open_pressure("linux") is None
    asyncio.run(watch_pressure(None, told.append))
    assert told == []


def test_memory_that_stays_short_is_told_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    """For who computes on keeps anew what it gave back; the log has a line for each change."""
    assert told_of(False, True, True, True, False, False, OSError("end")) == [True, True, True, False]
    assert [line for line in caplog.messages if "is_short" in line] == [
        "memory_pressure is_short=True",
        "memory_pressure is_short=False",
    ]


def test_who_was_never_short_of_memory_is_told_nothing() -> None:
    """A node need not be told that it is as it began."""
    assert told_of(False, False, OSError("end")) == []


def test_a_system_that_says_no_more_leaves_memory_for_sufficient() -> None:
    """Else a node would take one request at a time for ever."""
    assert told_of(True, OSError("gone")) == [True, False]
