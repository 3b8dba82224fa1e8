"""What all streams of a prefill node hold: bounded, given back on every way out, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kv.stream import KvFrame
from baton.prefill.outbox import OutboxBudget
from decode.pair import Pair, generate, request_of, with_pair
from engine.rig import GREEDY, LAYOUT, expected_tokens, mock_runner, prompt_of

TOKEN_BYTES = LAYOUT.num_token_bytes()


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "send", "close"]), st.integers(0, 4)), max_size=60))
def test_the_budget_holds_and_nothing_of_it_is_lost(steps: list[tuple[str, int]]) -> None:
    """However streams begin, send and end: together they have the bound at most, unless one is alone."""
    sizes = [10, 40, 60, 100, 250]
    budget = OutboxBudget(100, lambda: None)
    shares = [budget.share(LAYOUT, size * TOKEN_BYTES) for size in sizes]
    begun = set[int]()
    for step, index in steps:
        if step == "begin" and shares[index].may_begin():
            begun.add(index)
        elif step == "send":
            shares[index].sent(KvFrame(0, LAYOUT.num_layers, 0, 7, b"", b""))
        elif step == "close":
            shares[index].close()
            begun.discard(index)
        assert 0 <= budget.num_bytes <= max(100, *(sizes[index] * TOKEN_BYTES for index in begun), 0)

    for share in shares:
        share.close()
        assert not share.may_begin()
    assert budget.num_bytes == 0


def test_a_prompt_that_was_put_off_is_told_when_there_is_room() -> None:
    """Once, and only where one waits."""
    told: list[int] = []
    budget = OutboxBudget(100, lambda: told.append(budget.num_bytes))
    first, second = budget.share(LAYOUT, 80), budget.share(LAYOUT, 50)
    assert first.may_begin()
    assert not second.may_begin()
    first.close()

    assert told == [0]
    assert second.may_begin()
    second.close()
    assert told == [0]


def test_a_stream_that_has_ended_takes_nothing_any_more() -> None:
    """The engine may ask for it later than it ended."""
    budget = OutboxBudget(100, lambda: None)
    share = budget.share(LAYOUT, 80)
    share.close()

    assert not share.may_begin()
    assert budget.num_bytes == 0


@pytest.mark.parametrize("transport", ["grpc", "fast"])
def test_streams_share_the_nodes_memory(transport: Any) -> None:
    """Ten prompts, of which two have room at a time: all are answered, in the end nothing is held."""
    prompts = [prompt_of(41, seed=index) for index in range(10)]

    async def client(pair: Pair) -> None:
        most = 0
        budget = pair.prefill_side.prefiller._budget
        take = budget.take

        def watched(num_bytes: int) -> bool:
            nonlocal most
            has_taken = take(num_bytes)
            most = max(most, budget.num_bytes)
            return has_taken

        budget.take = watched  # type: ignore[method-assign]
        params = replace(GREEDY, max_tokens=4)
        answers = await asyncio.gather(
            *(
                generate(pair, request_of(prompt, params, request_id=f"r{index}"))
                for index, prompt in enumerate(prompts)
            )
        )

        assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 4) for prompt in prompts]
        assert all(not answer.summary.fallback_reason for answer in answers)
        assert 0 < most <= 90 * TOKEN_BYTES
        await pair.settle()
        assert budget.num_bytes == 0

    with_pair(
        client,
        transport=transport,
        max_outbox_bytes=90 * TOKEN_BYTES,
        prefill_runner=mock_runner(256),
        decode_runner=mock_runner(256),
    )


def test_a_prompt_larger_than_the_bound_is_served_alone() -> None:
    """It would never be served otherwise."""

    async def client(pair: Pair) -> None:
        answers = await asyncio.gather(
            *(generate(pair, request_of(prompt_of(41, seed=index), request_id=f"r{index}")) for index in range(3))
        )

        assert all(not answer.summary.fallback_reason for answer in answers)

    with_pair(client, max_outbox_bytes=1)


def test_a_prompt_that_has_no_room_even_alone_is_refused() -> None:
    """The node would be killed for it; the decode node computes the prompt, and says why."""

    async def client(pair: Pair) -> None:
        pair.prefill_side.prefiller._max_prompt_bytes = 40 * TOKEN_BYTES
        fits, too_large = [
            await generate(
                pair, request_of(prompt_of(length, seed=length), replace(GREEDY, max_tokens=4), request_id=f"r{length}")
            )
            for length in (40, 41)
        ]

        assert not fits.summary.fallback_reason
        assert too_large.summary.fallback_reason == "OUTBOX_TOO_SMALL"
        assert too_large.token_ids == expected_tokens(prompt_of(41, seed=41), 4)

    with_pair(client)
