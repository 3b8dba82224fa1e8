"""What counts as wrong in a stream of torch."""

from __future__ import annotations

import pytest
import torch

from system.faults import near_ties
from system.faults.near_ties import num_wrong

PROMPT = [(5 * place) % 500 + 3 for place in range(48)]


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    """Return what the model says, in float64, token by token."""
    text = list(PROMPT)
    with torch.inference_mode():
        for _ in range(24):
            text.append(int(near_ties._model()(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(PROMPT) :]


def test_greedy_output_has_nothing_wrong(greedy: list[int]) -> None:
    """However far it has come."""
    assert num_wrong(PROMPT, greedy) == num_wrong(PROMPT, greedy[:1]) == num_wrong(PROMPT, []) == 0


def test_a_token_that_is_lost_doubled_or_another_is_wrong(greedy: list[int]) -> None:
    """Whatever follows it is right again, if it is the best after that."""
    assert num_wrong(PROMPT, [*greedy[:9], *greedy[10:]]) > 0
    assert num_wrong(PROMPT, [*greedy[:9], greedy[9], *greedy[9:]]) > 0
    assert num_wrong(PROMPT, [*greedy[:-1], greedy[-1] ^ 1]) == 1
    assert num_wrong(PROMPT[:-1], greedy) > 0


def test_of_two_that_are_tied_either_is_right(greedy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rest is judged behind the one that was said."""
    with torch.inference_mode():
        logits = near_ties._model()(torch.tensor([[*PROMPT, *greedy[:-1]]])).logits[0, -1]
    best, second = logits.topk(2).indices.tolist()
    distance = float(logits[best] - logits[second])
    monkeypatch.setattr(near_ties, "TIE", 1.01 * distance)
    assert num_wrong(PROMPT, [*greedy[:-1], second]) == 0
    monkeypatch.setattr(near_ties, "TIE", 0.99 * distance)
    assert num_wrong(PROMPT, [*greedy[:-1], second]) == 1
