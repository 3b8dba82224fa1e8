"""Of a pass that fails, each request is computed alone: who makes it fail does so by itself, and no other notices."""

from __future__ import annotations

import pytest

from baton.engine.events import Ended, Failed, Isolated
from baton.errors import PassFailedError
from engine.faulty_runners import BreakingRunner, FaultyRunner, still
from engine.rig import VOCABULARY_SIZE, Rig, expected_tokens, prompt_of, request_of

LATER = (5, 6, 2)
NEIGHBOURS = [prompt_of(length, seed=length) for length in (5, 9, 30)]
_SOUND = {token for prompt in (*NEIGHBOURS, LATER) for token in (*prompt, *expected_tokens(prompt, 8))}
BAD_TOKEN = min(set(range(VOCABULARY_SIZE)) - _SOUND)


@pytest.mark.parametrize("kind", [FaultyRunner, BreakingRunner])
def test_neighbours_of_a_request_that_fails_passes_get_their_tokens(kind: type[FaultyRunner | BreakingRunner]) -> None:
    """Whether the pass raises when it is launched or when its tokens are asked for, in whatever batch."""
    runner = still(kind)
    assert isinstance(runner, FaultyRunner | BreakingRunner)
    runner.bad_token = BAD_TOKEN
    with Rig(runner) as rig:
        neighbours = [rig.submit(request_of(prompt, f"good-{len(prompt)}")) for prompt in NEIGHBOURS]
        poison = rig.submit(request_of((5, BAD_TOKEN, 6), "bad"))
        later = rig.submit(request_of(LATER, "later"))

        failed = poison.until(Failed, Ended)
        assert isinstance(failed, Failed)
        assert isinstance(failed.error, PassFailedError)
        for prompt, neighbour in zip(NEIGHBOURS, neighbours, strict=True):
            assert neighbour.result() == expected_tokens(prompt, 8)
        assert later.result() == expected_tokens(LATER, 8)


def test_a_suspect_is_told_of_before_each_pass_of_its_own() -> None:
    """Between the two words no other's tokens come; the engine waits for each to be passed on."""
    with Rig() as rig:
        neighbour = rig.submit(request_of(NEIGHBOURS[0], "good"))
        suspect = rig.submit(request_of(NEIGHBOURS[2], "suspect", is_suspect=True))
        told = []
        while not isinstance(event := suspect.next(), Ended):
            if isinstance(event, Isolated):
                told.append(event.is_alone)
                event.told()

        assert told
        assert told == [index % 2 == 0 for index in range(len(told))]
        assert suspect.token_ids == expected_tokens(NEIGHBOURS[2], 8)
        assert neighbour.result() == expected_tokens(NEIGHBOURS[0], 8)
