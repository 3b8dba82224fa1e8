"""The training run: schedule, positions, and going on after a stop."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from baton.demo import train
from baton.demo.model import MAX_POSITIONS
from baton.demo.train import PEAK_LEARNING_RATE, STEP_TOKENS, Training, draw_positions, learning_rate, new_batch


def test_every_batch_has_the_same_number_of_tokens() -> None:
    """Whatever its row length, a step costs about the same."""
    rng = random.Random(1)
    for progress in (0.0, 0.3, 0.9, 1.0):
        batch = new_batch(rng, progress)

        assert batch.tokens.numel() == STEP_TOKENS
        assert batch.tokens.shape == batch.labels.shape == batch.positions.shape
        assert 0 < int((batch.labels >= 0).sum()) < STEP_TOKENS


def test_positions_increase_and_stay_below_the_maximum() -> None:
    """A jump never repeats a position and never leaves the model's range."""
    rng = random.Random(2)
    for _ in range(200):
        positions = draw_positions(rng, 256)

        assert len(positions) == 256
        assert all(before < after for before, after in itertools.pairwise(positions))
        assert 0 <= positions[0] <= positions[-1] < MAX_POSITIONS


def test_the_learning_rate_rises_then_falls() -> None:
    """It starts near zero, stays within the peak, and ends at a hundredth of it."""
    assert learning_rate(0, 0.0) < PEAK_LEARNING_RATE / 100
    assert learning_rate(1000, 0.1) > learning_rate(5000, 0.5) > learning_rate(9000, 1.0)
    assert learning_rate(9000, 1.0) < PEAK_LEARNING_RATE / 50


def test_a_resumed_run_continues_where_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step, clock, data and weights are those of the run that was saved."""
    monkeypatch.setattr(train, "STEP_TOKENS", STEP_TOKENS // 32)
    state_file = tmp_path / "run" / "state.pt"
    stopped = Training(minutes=60, seed=1, state_file=state_file, is_compiled=False)
    stopped.take_step()
    stopped.save()

    resumed = Training(minutes=60, seed=2, state_file=state_file, is_compiled=False)

    assert resumed.resume()
    assert (resumed.step, resumed.elapsed_seconds) == (1, stopped.elapsed_seconds)
    assert resumed.rng.getstate() == stopped.rng.getstate()
    for ours, theirs in zip(resumed.model.parameters(), stopped.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_without_a_save_starts_anew(tmp_path: Path) -> None:
    """Nothing to resume is not an error."""
    assert not Training(minutes=1, seed=1, state_file=tmp_path / "none.pt", is_compiled=False).resume()
