"""KV streams that break are resumed: what has come is kept, only the rest is sent or computed, no token is doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.decode.kv_stream.reader import Timeouts
from baton.engine.runners.base import Launched, Span
from baton.internal.v1 import prefill_service_pb2
from baton.telemetry import names
from decode.pair import (
    DECODE_ID,
    PREFILL_ID,
    SPARE_ID,
    TIMEOUT_SECONDS,
    ChangingTimeouts,
    Damage,
    Pair,
    Responses,
    generate,
    request_of,
    silent_until_the_deadline,
    with_pair,
)
from engine.rig import GREEDY, LAYOUT, expected_tokens, prompt_of

PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)
TOKEN_BYTES = LAYOUT.num_token_bytes()
BROKEN = "KV_STREAM_BROKEN"
NUM_FRAMES = 6
"""Of the prompt: three passes, and two groups of layers in each."""


@pytest.fixture(params=["grpc", "fast", "shared"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TransportChoice:
    """Have every test run with the gRPC library, with the fast path, and with shared memory."""
    monkeypatch.setattr("decode.pair.TRANSPORT", request.param)
    return cast(TransportChoice, request.param)


def ending_once(number: int, *, after_first_token: bool = False) -> Damage:
    """End the first stream, without an error, before a frame."""
    has_ended = False

    async def damage(responses: Responses) -> Responses:
        nonlocal has_ended
        has_token = False
        async for response in responses:
            has_token = has_token or response.HasField("first_token")
            is_reached = response.HasField("frame") and response.frame.sequence_number == number
            if is_reached and not has_ended:
                if after_first_token and not has_token:
                    yield await _next_first_token(responses)
                has_ended = True
                return
            yield response

    return damage


async def _next_first_token(responses: Responses) -> prefill_service_pb2.PrefillResponse:
    async for response in responses:
        if response.HasField("first_token"):
            return response
    raise AssertionError("no first token")


@pytest.mark.parametrize("number", range(NUM_FRAMES))
@pytest.mark.parametrize("after_first_token", [False, True])
def test_a_stream_that_breaks_at_any_frame_is_resumed_where_it_broke(number: int, *, after_first_token: bool) -> None:
    """By the same node, which sends every (chunk, layer) that is missing and nothing else, and computes little."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))
        first, second = pair.servicer.requests

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_break_reasons == [BROKEN]
        assert (answer.summary.kv_resume_count, answer.summary.fallback_reason) == (1, "")
        assert answer.summary.prefill_node_id == PREFILL_ID
        assert answer.summary.kv_byte_count == len(PROMPT) * TOKEN_BYTES
        assert answer.summary.kv_kept_token_count == second.kv_token_begin
        assert (first.stream_number, second.stream_number) == (0, 1)
        assert pair.metrics.counted[names.KV_BREAKS] == [(1, BROKEN, "same_node")]

    with_pair(client, damage=ending_once(number, after_first_token=after_first_token))


def test_a_second_stream_is_asked_layer_by_layer_for_what_is_missing() -> None:
    """Where a stream breaks between two layers of a chunk."""

    async def client(pair: Pair) -> None:
        await generate(pair, request_of(PROMPT))
        _, second = pair.servicer.requests

        assert second.kv_token_begin == 16
        assert list(second.layer_token_begins) == [32, 32, 16]

    with_pair(client, damage=ending_once(3))


async def ending(responses: Responses) -> Responses:
    """End whenever two frames have been sent."""
    async for response in responses:
        if response.HasField("frame") and response.frame.sequence_number == 2:
            return
        yield response


async def dying(responses: Responses) -> Responses:
    """Fail whenever two frames have been sent."""
    async for response in ending(responses):
        yield response
    raise RuntimeError("the node is broken")


def test_another_node_takes_over_where_the_first_breaks_twice() -> None:
    """It computes the prompt, and sends what the decode node still lacks."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, alternative_node_ids=[SPARE_ID]))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_break_reasons == [BROKEN, BROKEN]
        assert (answer.summary.kv_resume_count, answer.summary.fallback_reason) == (2, "")
        assert answer.summary.prefill_node_id == SPARE_ID
        assert answer.summary.kv_byte_count == len(PROMPT) * TOKEN_BYTES
        assert pair.spare_side.servicer.requests[0].kv_token_begin == answer.summary.kv_kept_token_count >= 16
        assert pair.metrics.counted[names.KV_BREAKS] == [(1, BROKEN, "same_node"), (1, BROKEN, "other_node")]

    with_pair(client, damage=ending)


def test_another_node_takes_over_at_once_from_one_that_fails() -> None:
    """A stream that breaks its rules says little of the node; an error of the node does."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, alternative_node_ids=[SPARE_ID]))

        assert answer.token_ids == EXPECTED
        assert pair.metrics.counted[names.KV_BREAKS] == [(1, "INTERNAL", "other_node")]

    with_pair(client, damage=dying)


def test_another_node_takes_over_from_one_that_cannot_be_reached() -> None:
    """At once: the first is asked again only after the others."""

    async def client(pair: Pair) -> None:
        await pair.prefill_server.drain(0)
        await pair.fast_server.drain(0)
        answer = await generate(pair, request_of(PROMPT, alternative_node_ids=[SPARE_ID]))

        assert answer.token_ids == EXPECTED
        assert answer.summary.prefill_node_id == SPARE_ID
        assert answer.summary.fallback_reason == ""
        assert len(pair.metrics.counted[names.KV_BREAKS]) == 1

    with_pair(client)


def test_the_decode_node_computes_only_what_is_missing() -> None:
    """Where nobody is left: from the last position that is complete in every layer on."""

    async def client(pair: Pair) -> None:
        runner = pair.decode.runner
        computed: list[tuple[int, int]] = []
        launch = runner.launch

        def launch_noted(spans: Sequence[Span], **options: Any) -> Launched:
            computed.extend((span.start, len(span.token_ids)) for span in spans)
            return launch(spans, **options)

        runner.launch = launch_noted  # type: ignore[method-assign]
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.prefill_node_id == DECODE_ID
        assert answer.summary.fallback_reason == "INTERNAL"
        assert min(start for start, _ in computed) == answer.summary.kv_kept_token_count >= 16

    with_pair(client, damage=dying)


@pytest.mark.parametrize("frame", [1, 4])
def test_kept_kv_may_be_hit_later(frame: int) -> None:
    """It has proven itself: blocks that hold it go into the prefix cache like any others."""

    async def client(pair: Pair) -> None:
        await generate(pair, request_of(PROMPT))
        again = await generate(pair, request_of(PROMPT, request_id="again", prefill_node_id=""))

        assert again.token_ids == EXPECTED
        assert again.summary.decode_cached_token_count == 40

    with_pair(client, damage=ending_once(frame))


def test_a_stream_is_given_up_while_there_is_time_to_compute_the_rest() -> None:
    """A node that hangs may be waited for longer than the caller of the decode node waits."""

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT)
        request.timeout.FromSeconds(int(TIMEOUT_SECONDS))
        answer = await generate(pair, request)

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "DEADLINE"

    patience = Timeouts(3 * TIMEOUT_SECONDS, 3 * TIMEOUT_SECONDS)
    damage = silent_until_the_deadline(num_responses=3)
    with_pair(client, damage=damage, timeouts=patience, timeout_seconds=2 * TIMEOUT_SECONDS)


def test_a_node_that_hangs_is_not_asked_again() -> None:
    """Another one is. Impatience begins with the last frame before the silence: a busy machine is slow as well."""
    timeouts = ChangingTimeouts(TIMEOUT_SECONDS, TIMEOUT_SECONDS)

    async def silent(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("frame"):
                if response.frame.sequence_number == 2:
                    await asyncio.Event().wait()
                timeouts.frame_seconds = 0.2 if response.frame.sequence_number == 1 else TIMEOUT_SECONDS
            yield response

    async def client(pair: Pair) -> None:
        def is_broken(*_labels: str) -> None:
            timeouts.frame_seconds = TIMEOUT_SECONDS

        pair.metrics.add_kv_break = is_broken  # type: ignore[method-assign]
        answer = await generate(pair, request_of(PROMPT, alternative_node_ids=[SPARE_ID]))

        assert answer.token_ids == EXPECTED
        assert answer.summary.prefill_node_id == SPARE_ID
        assert len(pair.servicer.requests) == 1

    with_pair(client, damage=silent, timeouts=timeouts)


def test_a_sampled_first_token_that_was_delivered_stays() -> None:
    """The second stream samples it again; the client sees one."""
    params = replace(GREEDY, temperature=1.0, seed=5)

    async def client(pair: Pair) -> None:
        whole = await generate(pair, request_of(PROMPT, params, request_id="whole", prefill_node_id=""))
        answer = await generate(pair, request_of(PROMPT, params, bypass_prefix_cache=True))

        assert answer.token_ids == whole.token_ids
        assert answer.summary.kv_resume_count == 1

    with_pair(client, damage=ending_once(5, after_first_token=True))


async def altered(responses: Responses) -> Responses:
    """Answer another request than the one that was sent."""
    async for response in responses:
        if response.HasField("layout"):
            response.request_crc32c ^= 1
        yield response


async def misplaced(responses: Responses) -> Responses:
    """Say of a frame that it holds other layers, whose turn it might be."""
    async for response in responses:
        if response.HasField("frame") and response.frame.sequence_number == 0:
            response.frame.layer_begin, response.frame.layer_count = 1, 1
        yield response


@pytest.mark.parametrize("damage", [altered, misplaced])
def test_nothing_is_kept_of_a_stream_that_is_not_the_requests_own(damage: Damage) -> None:
    """Its KV would be that of another prompt, or of another layer."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_kept_token_count == 0
        assert answer.summary.fallback_reason == BROKEN

    with_pair(client, damage=damage)
