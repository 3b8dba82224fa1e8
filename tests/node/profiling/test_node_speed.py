"""What a node measures of its model at start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from baton.engine.runners.base import Runner, Span
from baton.node.profiling.node_speed import LONG_SECONDS, NUM_REPEATS, PREFILL_LENGTHS, measure_profile
from engine.rig import INFO

NUM_WARM_UPS = 1


class TimedRunner:
    """Takes a fixed time for a pass and one for each position, on a clock of its own."""

    info = replace(INFO, max_context_tokens=2048)
    num_blocks, block_tokens = 256, 16

    def __init__(self, pass_seconds: float, token_seconds: float) -> None:
        self._pass_seconds, self._token_seconds = pass_seconds, token_seconds
        self.now = 0.0
        self.num_runs: Counter[int] = Counter()
        """Of single prompts, by their length."""

    def forward(self, spans: Sequence[Span]) -> Any:
        """Let the time of a pass go by."""
        num_tokens = sum(len(span.token_ids) for span in spans)
        self.now += self._pass_seconds + self._token_seconds * num_tokens
        self.num_runs[num_tokens] += 1
        return np.zeros(1)


def profile_of(runner: TimedRunner) -> Any:
    """Return what is measured of a runner."""
    return measure_profile(cast(Runner, runner), lambda: runner.now)


def test_rates_follow_the_times_of_passes() -> None:
    """Twice the time for a position is half the rate; what every pass takes is the overhead."""
    one, two = profile_of(TimedRunner(0.001, 1e-5)), profile_of(TimedRunner(0.001, 2e-5))

    assert one.prefill_flops == pytest.approx(2 * two.prefill_flops, rel=0.01)
    assert one.prefill_overhead_seconds == pytest.approx(0.001, rel=0.2)  # attention is of the square


def test_short_runs_are_repeated_and_long_ones_are_not() -> None:
    """A node of a slow model would spend its first minutes on what the first run has told already."""
    quick = TimedRunner(0.001, 1e-5)
    slow = TimedRunner(0.001, 2 * LONG_SECONDS / max(PREFILL_LENGTHS))
    profiles = profile_of(quick), profile_of(slow)

    assert quick.num_runs[max(PREFILL_LENGTHS)] == NUM_WARM_UPS + NUM_REPEATS
    assert slow.num_runs[max(PREFILL_LENGTHS)] == NUM_WARM_UPS + 1
    assert slow.num_runs[min(PREFILL_LENGTHS)] == NUM_WARM_UPS + NUM_REPEATS
    assert profiles[0].prefill_flops > profiles[1].prefill_flops > 0
