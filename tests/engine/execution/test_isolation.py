"""Of a pass that fails, each request is computed alone: who makes it fail does so by itself, and no other notices."""

from __future__ import annotations

import itertools
import threading

import pytest

from baton.engine.events import Ended, EngineEvent, Failed, Isolated, TokenReady
from baton.engine.request import SamplingParams
from baton.errors import PassFailedError
from engine.faulty_runners import BreakingRunner, FaultyRunner, still
from engine.rig import TIMEOUT_SECONDS, VOCABULARY_SIZE, Rig, expected_tokens, prompt_of, request_of

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


def test_nothing_is_in_flight_when_a_pass_of_its_own_begins() -> None:
    """Not even the last of several in a row: what ended the process with that would be put down to the suspect."""
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    for moment in range(8):
        said, ended = list[str](), threading.Semaphore(0)
        with Rig() as rig:

            def hear_suspect(event: EngineEvent) -> None:
                if isinstance(event, Isolated):
                    said.append("alone" if event.is_alone else "shared")  # noqa: B023 - called in this turn alone
                    event.told()
                elif isinstance(event, Ended):
                    said.append("over")  # noqa: B023
                    ended.release()  # noqa: B023

            def hear_neighbour(event: EngineEvent) -> None:
                if isinstance(event, TokenReady):
                    said.append("token")  # noqa: B023
                    if event.output_index == moment:  # noqa: B023
                        rig.engine.submit(request_of(LATER, "suspect", is_suspect=True), hear_suspect)
                elif isinstance(event, Ended):
                    ended.release()  # noqa: B023

            rig.engine.submit(request_of(NEIGHBOURS[0], "good", params), hear_neighbour)
            assert all(ended.acquire(timeout=TIMEOUT_SECONDS) for _ in range(2))

        assert "alone" in said
        assert ("alone", "token") not in itertools.pairwise(said)
