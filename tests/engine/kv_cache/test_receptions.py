"""What is told of requests that receive."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.engine.kv_cache.receptions import Receptions
from baton.engine.sequence import Phase


def _receptions(sequence: Any, committed: list[Any]) -> Receptions:
    def after(of: Any, function: Callable[[], None]) -> None:
        assert of is sequence
        function()

    return Receptions(
        cast(Any, None),
        cast(Any, SimpleNamespace(commit_received=committed.append)),
        cast(Any, SimpleNamespace(get=lambda _request_id: sequence, joined=lambda *_, **__: None)),
        cast(Any, SimpleNamespace(after=after)),
        cast(Any, SimpleNamespace(seconds_left=0.02, is_in_flight=True)),
        clock=lambda: 5.0,
    )


def test_the_wait_to_join_lasts_until_the_pass_in_flight_is_over() -> None:
    """From when the KV had come: also what the engine's thread did not look, or the KV was not written, counts."""
    sequence, committed = SimpleNamespace(phase=Phase.RECEIVING, stats=SimpleNamespace(join_seconds=0.0)), list[Any]()

    _receptions(sequence, committed).commit("r", came_seconds=4.99)

    assert committed == [sequence]
    assert sequence.stats.join_seconds == pytest.approx(0.03)


def test_nothing_is_committed_of_a_request_that_does_not_receive() -> None:
    """It was aborted, or is computed here by now."""
    committed = list[Any]()

    _receptions(SimpleNamespace(phase=Phase.RUNNING), committed).commit("r", came_seconds=4.99)

    assert committed == []
