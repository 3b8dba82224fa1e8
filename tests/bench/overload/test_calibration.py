"""A calibration that is too short for the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bench.local_cluster import Endpoints
from bench.overload import __main__ as overload
from bench.overload.drive import Drive


def test_a_calibration_in_which_nothing_is_complete_says_how_long_it_must_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capacity of 0 would be a load of nothing, or a division by it."""

    @contextmanager
    def running(*_: object) -> Iterator[Endpoints]:
        yield Endpoints("", "")

    async def saturate(*_: object) -> Drive:
        return Drive([], [])

    facts = SimpleNamespace(prefiller=SimpleNamespace(prefill_seconds=lambda _tokens: 0.5))
    for name, stand_in in (("running", running), ("read_facts", lambda _: facts), ("saturate", saturate)):
        monkeypatch.setattr(overload, name, stand_in)

    with pytest.raises(SystemExit, match=r"complete in time, 12 s, .* give --calibration-seconds 13$"):
        overload.main(["--calibration-seconds", "3", "--mock-time-scale", "4"])
