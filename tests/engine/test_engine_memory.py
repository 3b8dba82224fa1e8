"""An engine that is short of blocks, with and without host memory to move them to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from baton.capacity.hardware import PRESETS
from baton.engine.events import Ended, Failed
from baton.engine.runners.base import LayerKv
from baton.engine.runners.mock import MockRunner
from engine.rig import GREEDY, INFO, Listening, Rig, expected_tokens, mock_runner, prompt_of, request_of

LONG = replace(GREEDY, max_tokens=40)
HOST_BYTES = 2**20


class UnwritableRunner(MockRunner):
    """Takes no K and V in."""

    def write_kv(self, block_table: Sequence[int], layer: int, start: int, num_tokens: int, kv: LayerKv) -> None:
        """Fail."""
        raise RuntimeError("no such block")


def _start(rig: Rig, num_requests: int) -> list[Listening]:
    requests = [request_of(prompt_of(20, seed), f"r{seed}", LONG) for seed in range(num_requests)]
    return [rig.submit(request) for request in requests]


@pytest.mark.parametrize("host_bytes", [0, 3 * 4 * INFO.layout.num_token_bytes(), HOST_BYTES])
def test_preempted_requests_say_what_they_would_have_said(host_bytes: int) -> None:
    """Whether all, some or none of their blocks come back from host memory."""
    with Rig(mock_runner(num_blocks=30), host_bytes=host_bytes) as rig:
        listenings = _start(rig, 6)
        results = [listening.result() for listening in listenings]
        store = rig.engine.scheduler.offload.store

        assert results == [expected_tokens(prompt_of(20, seed), 40) for seed in range(6)]
        assert sum(_ended(listening).num_preemptions for listening in listenings) > 0
        assert (len(store) > 0) == (host_bytes > 0)
        assert len(store) <= store.max_blocks


def test_a_request_whose_blocks_cannot_be_restored_fails_and_the_engine_goes_on() -> None:
    """Its pass fails; what is asked later is answered."""
    runner = UnwritableRunner(
        INFO, PRESETS["h200"], num_blocks=30, block_tokens=4, clock=lambda: 1.0, sleep=lambda _seconds: None
    )
    with Rig(runner, host_bytes=HOST_BYTES) as rig:
        ends = [listening.until(Ended, Failed) for listening in _start(rig, 6)]

        assert any(isinstance(end, Failed) and "no such block" in str(end.error) for end in ends)
        assert rig.generate(request_of(prompt_of(9), "later")) == expected_tokens(prompt_of(9), 8)


def _ended(listening: Listening) -> Ended:
    end = listening.seen[-1]
    assert isinstance(end, Ended)
    return end
