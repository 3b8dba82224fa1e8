"""What a pass costs the host does not grow with what the engine has done before, nor with what is not its business."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np

from baton.engine.engine import Engine
from baton.engine.events import Ended
from baton.engine.request import SamplingParams
from baton.engine.request_registry import Deliverable, Delivery
from baton.engine.runners.base import Array, Span
from baton.engine.scheduling.admission import SchedulerLimits
from engine.rig import INFO, VOCABULARY_SIZE, WaitingMockRunner, mock_runner, request_of

BLOCK_TOKENS = 16


class SameToken:
    """Logits of which every row has the same best token."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def argmax(self) -> list[int]:
        """Return the token, once per row."""
        return [5] * self._num_rows

    def rows(self, indices: object = None) -> Array:
        """Fail: a greedy choice needs no row."""
        raise AssertionError("rows of a greedy batch were copied")


def cpu_seconds_per_pass(batch_size: int, num_passes: int) -> list[float]:
    """Return the CPU time of the engine's thread between the first tokens of a batch and their last, in quarters."""
    runner = mock_runner(
        num_blocks=batch_size * (num_passes // BLOCK_TOKENS + 3),
        block_tokens=BLOCK_TOKENS,
        info=replace(INFO, max_context_tokens=num_passes + BLOCK_TOKENS),
        kind=WaitingMockRunner,
    )
    times, is_done, num_ended = list[float](), threading.Event(), 0

    def forward(spans: list[Span]) -> SameToken:
        times.append(time.thread_time())
        return SameToken(len(spans))

    def post(deliveries: list[Deliverable]) -> None:
        nonlocal num_ended
        num_ended += sum(isinstance(each, Delivery) and isinstance(each.event, Ended) for each in deliveries)
        if num_ended == batch_size:
            is_done.set()

    runner.forward = forward  # type: ignore[method-assign, assignment]
    engine = Engine(runner, SchedulerLimits(max_batch_size=batch_size, max_step_tokens=8 * batch_size), post=post)
    params = SamplingParams(temperature=0.0, max_tokens=num_passes, ignore_eos=True)
    for index in range(batch_size):
        prompt = np.random.default_rng(index).integers(10, VOCABULARY_SIZE, 8).tolist()
        engine.submit(request_of(prompt, f"r{index}", params), lambda _event: None)
    engine.start()
    assert is_done.wait(120)
    engine.close()
    marks = np.linspace(len(times) - num_passes + 1, len(times) - 1, 5).astype(int)
    return [(times[end] - times[start]) / (end - start) for start, end in pairwise(marks)]


def test_a_pass_costs_the_same_after_thousands_of_passes() -> None:
    """Sequences grow and blocks fill; the last quarter of 6000 passes is not dearer than the first by half.

    Others that share core and cache may begin between the two quarters: one run of four must show it.
    """
    runs = (cpu_seconds_per_pass(batch_size=2, num_passes=6000) for _ in range(4))

    assert any(quarters[-1] < 1.5 * quarters[0] + 20e-6 for quarters in runs)


def test_host_time_per_sequence_falls_with_the_batch() -> None:
    """What a pass costs beside its sequences is shared by them: 64 cost less than 64 times one."""
    alone, together = cpu_seconds_per_pass(1, 400), cpu_seconds_per_pass(64, 400)

    assert min(together) < 64 * min(alone)
