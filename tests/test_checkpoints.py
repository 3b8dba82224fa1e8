"""What transformers generates, as tests ask for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from checkpoints import checkpoint, reference_generate

NUM_TOKENS = 24


@pytest.mark.parametrize("num_right", [0, 1, 10, 23, 24, 30])
def test_a_guess_changes_nothing(num_right: int, tmp_path: Path) -> None:
    """Wherever it goes wrong, and also where more or fewer tokens are asked for than it has."""
    prompt = random.Random(3).choices(range(3, 512), k=20)
    expected = reference_generate(checkpoint("mistral"), prompt, 32)
    guess = [*expected[:num_right], *(token + 1 for token in expected[num_right:30])]
    another_folder = tmp_path / "mistral"  # of which nothing is known yet
    another_folder.symlink_to(checkpoint("mistral"))

    outputs = [reference_generate(another_folder, prompt, count, guess=guess) for count in (5, NUM_TOKENS, 32, 8)]

    assert outputs == [expected[:count] for count in (5, NUM_TOKENS, 32, 8)]
