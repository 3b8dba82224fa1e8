"""The gauge of the engine, on a mock device in real time."""

from __future__ import annotations

import pytest

from baton.engine.runners.mock import MockRunner
from engine.microbench.host_time import Load, measure
from engine.rig import INFO, mock_runner


@pytest.mark.parametrize(("runs_ahead", "max_launch_steps"), [(True, 8), (False, 1)])
def test_a_pass_takes_what_its_device_takes_at_least(runs_ahead: bool, max_launch_steps: int) -> None:
    """And throughput, pace and batch agree with each other; a second run finds the runner as it was."""
    runner = MockRunner(INFO, mock_runner().hardware, num_blocks=64, block_tokens=4, fixed_step_seconds=0.002)
    runner.runs_ahead, runner.max_launch_steps = runs_ahead, max_launch_steps
    for _ in range(2):
        measured = measure(runner, Load(batch_size=3, num_passes=20, temperature=0.5))

        assert measured.tpot_seconds > 0.0015
        assert measured.tokens_per_second == pytest.approx(3 / measured.tpot_seconds)
        assert measured.host_seconds > 0
