"""Generations with a remote prefill, intact and damaged, over real channels."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.decode.kv_stream.reader import Timeouts
from baton.engine.request import SamplingParams
from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.rpc.status import error_info
from baton.shm.lender import SEGMENT_BYTES
from baton.telemetry import names
from baton.v1.generation_pb2 import FINISH_REASON_LENGTH, PlacementSummary
from decode.pair import (
    DECODE_ID,
    PATIENT,
    PREFILL_ID,
    TIMEOUT_SECONDS,
    Damage,
    Pair,
    Responses,
    follow,
    generate,
    other_layout,
    request_of,
    with_pair,
)
from engine.rig import GREEDY, expected_tokens, mock_runner, prompt_of

PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)
SHORT = Timeouts(first_frame_seconds=0.2, frame_seconds=0.2)


@pytest.fixture(params=["grpc", "fast", "shared"], autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TransportChoice:
    """Have every test run with the gRPC library, with the fast path, and with shared memory."""
    monkeypatch.setattr("decode.pair.TRANSPORT", request.param)
    return cast(TransportChoice, request.param)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 41])
def test_a_remote_prefill_gives_the_tokens_of_a_local_one(length: int) -> None:
    """At every position of the prompt's end in a block; the summary tells both nodes and all bytes."""
    prompt = prompt_of(length)

    async def client(pair: Pair) -> None:
        local = await generate(pair, request_of(prompt, prefill_node_id="", request_id="a", bypass_prefix_cache=True))
        remote = await generate(pair, request_of(prompt, request_id="b"))

        assert local.token_ids == remote.token_ids == expected_tokens(prompt, 8)
        assert local.summary.prefill_node_id == DECODE_ID
        assert remote.summary.prefill_node_id == PREFILL_ID
        assert remote.summary.fallback_reason == ""
        assert remote.summary.kv_byte_count == length * pair.decode.runner.info.layout.num_token_bytes()
        assert remote.finished.reason == FINISH_REASON_LENGTH
        assert remote.finished.usage.prompt_token_count == length
        assert remote.finished.usage.completion_token_count == 8
        assert pair.decode.registration.outcomes == [local.summary, remote.summary]
        assert pair.servicer.requests[0].placement_id == "placement"
        assert pair.prefill.placement_ids == ["placement"]

    with_pair(client)


@pytest.mark.parametrize(("on_prefill", "on_decode"), [(0, 0), (24, 0), (0, 24), (24, 12), (12, 24), (41, 41)])
def test_prefix_hits_on_either_side_shorten_the_work_and_change_nothing(on_prefill: int, on_decode: int) -> None:
    """Only what the decode node lacks is streamed; only what the prefill node lacks is computed."""

    async def client(pair: Pair) -> None:
        one = replace(GREEDY, max_tokens=1)
        if on_prefill:
            await generate(pair, request_of((*PROMPT[:on_prefill], 1), one, request_id="warm-p", cache_salt="s"))
        if on_decode:
            warm = request_of((*PROMPT[:on_decode], 1), one, prefill_node_id="", request_id="warm-d", cache_salt="s")
            await generate(pair, warm)
        answer = await generate(pair, request_of(PROMPT, request_id="b", cache_salt="s"))

        num_on_decode = on_decode // 4 * 4
        assert answer.token_ids == EXPECTED
        assert answer.summary.decode_cached_token_count == num_on_decode
        assert answer.summary.prefill_cached_token_count == on_prefill // 4 * 4
        assert answer.finished.usage.cached_token_count == max(num_on_decode, on_prefill // 4 * 4)
        token_bytes = pair.decode.runner.info.layout.num_token_bytes()
        assert answer.summary.kv_byte_count == (41 - num_on_decode) * token_bytes

    with_pair(client)


@pytest.mark.parametrize("prefill_node_id", ["", PREFILL_ID])
def test_a_request_tells_what_it_cost_the_machines(prefill_node_id: str) -> None:
    """Peak memory of each process, and the energy of the prefill where it was computed."""

    async def client(pair: Pair) -> None:
        computing = pair.prefill if prefill_node_id else pair.decode
        now = time.monotonic()
        for second in range(-int(TIMEOUT_SECONDS), int(TIMEOUT_SECONDS)):  # however long the request takes
            computing.monitor._power.add(now + second, 50)
        summary = (await generate(pair, request_of(PROMPT, prefill_node_id=prefill_node_id))).summary

        assert summary.decode_peak_memory_byte_count > 1 << 20
        assert (summary.prefill_peak_memory_byte_count > 1 << 20) == bool(prefill_node_id)
        prefill_seconds = summary.prefill_duration.ToMicroseconds() / 1e6
        assert summary.prefill_energy_joules == pytest.approx(50 * prefill_seconds, rel=0.01, abs=1e-3)
        assert summary.HasField("decode_energy_joules") == (not prefill_node_id)

    with_pair(client)


async def flipped(responses: Responses) -> Responses:
    """Flip a bit of the third frame."""
    index = 0
    async for response in responses:
        if response.HasField("frame"):
            index += 1
            if index == 3 and response.frame.values:
                response.frame.values = response.frame.values[:-1] + bytes([response.frame.values[-1] ^ 1])
            elif index == 3:
                response.frame.shared.offset += 64
        yield response


async def doubled(responses: Responses) -> Responses:
    """Send a frame twice."""
    async for response in responses:
        yield response
        if response.HasField("frame") and response.frame.sequence_number == 1:
            yield response


async def dropped(responses: Responses) -> Responses:
    """Lose a frame."""
    async for response in responses:
        if not (response.HasField("frame") and response.frame.sequence_number == 1):
            yield response


async def without_summary(responses: Responses) -> Responses:
    """End early, although without an error."""
    async for response in responses:
        if not response.HasField("summary"):
            yield response


async def with_wrong_total(responses: Responses) -> Responses:
    """Promise more than was sent."""
    async for response in responses:
        if response.HasField("summary"):
            response.summary.byte_count += 1
        yield response


async def with_an_empty_message(responses: Responses) -> Responses:
    """Say nothing once, as a newer node might to one that does not know what it says."""
    async for response in responses:
        if response.HasField("summary"):
            yield type(response)()
        yield response


async def without_layout(responses: Responses) -> Responses:
    """Begin with a frame."""
    async for response in responses:
        if not response.HasField("layout"):
            yield response


async def with_other_layout(responses: Responses) -> Responses:
    """Say a layout that is not the receiver's."""
    async for response in responses:
        if response.HasField("layout"):
            response.layout.layers[1].kv_head_count = 3
        yield response


async def with_two_first_tokens(responses: Responses) -> Responses:
    """Say the first token twice, ahead of all frames: how many of them it overtakes is not the damage's matter."""
    frames = []
    async for response in responses:
        if response.HasField("frame"):
            frames.append(response)
            continue
        if response.HasField("first_token"):
            yield response
        elif response.HasField("summary"):
            for frame in frames:
                yield frame
        yield response


async def with_two_first_tokens_at_the_end(responses: Responses) -> Responses:
    """Say the first token twice, behind all frames."""
    first_token = None
    async for response in responses:
        if response.HasField("first_token"):
            first_token = response
            continue
        if response.HasField("summary") and first_token is not None:
            yield first_token
            yield first_token
        yield response


async def without_first_token(responses: Responses) -> Responses:
    """Forget the first token."""
    async for response in responses:
        if not response.HasField("first_token"):
            yield response


async def with_an_impossible_first_token(responses: Responses) -> Responses:
    """Name a token that the model does not have."""
    async for response in responses:
        if response.HasField("first_token"):
            response.first_token.token.token_id = 10**6
        yield response


async def empty_message(responses: Responses) -> Responses:
    """Send a message without an element."""
    async for response in responses:
        yield response
        yield prefill_service_pb2.PrefillResponse()


async def dying_at_once(responses: Responses) -> Responses:
    """Fail before the first message."""
    raise RuntimeError("the node is broken")
    async for response in responses:
        yield response


async def dying(responses: Responses) -> Responses:
    """Fail after some frames."""
    async for response in responses:
        if response.HasField("frame") and response.frame.sequence_number == 2:
            raise RuntimeError("the node is broken")
        yield response


async def dying_after_the_first_token(responses: Responses) -> Responses:
    """Fail when the client has its first token, and frames are still on their way."""
    async for response in responses:
        if not response.HasField("frame"):
            yield response
        if response.HasField("first_token"):
            raise RuntimeError("the node is broken")


async def silent(responses: Responses) -> Responses:
    """Say nothing after the second frame."""
    async for response in responses:
        if response.HasField("frame") and response.frame.sequence_number == 2:
            await asyncio.Event().wait()
        yield response


async def silent_from_the_start(responses: Responses) -> Responses:
    """Say nothing at all."""
    await asyncio.Event().wait()
    async for response in responses:
        yield response


async def silent_after_the_layout(responses: Responses) -> Responses:
    """Wait in a queue forever."""
    async for response in responses:
        yield response
        await asyncio.Event().wait()


BROKEN = "KV_STREAM_BROKEN"
DAMAGES: list[tuple[Damage, str]] = [
    (flipped, BROKEN),
    (doubled, BROKEN),
    (dropped, BROKEN),
    (with_wrong_total, BROKEN),
    (without_layout, BROKEN),
    (with_other_layout, "KV_LAYOUT_MISMATCH:layers[1].kv_head_count"),
    (with_two_first_tokens, BROKEN),
    (without_first_token, BROKEN),
    (with_an_impossible_first_token, BROKEN),
    (empty_message, BROKEN),
    (dying_at_once, "INTERNAL"),
    (dying, "INTERNAL"),
    (dying_after_the_first_token, "INTERNAL"),
    (silent, BROKEN),
    (silent_from_the_start, BROKEN),
    (silent_after_the_layout, BROKEN),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_damaged_stream_is_replaced_by_a_local_prefill(damage: Damage, reason: str) -> None:
    """Same tokens, each once; the summary says why, and no damaged KV can be hit afterwards."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))
        again = await generate(pair, request_of(PROMPT, prefill_node_id="", request_id="again"))

        assert answer.token_ids == again.token_ids == EXPECTED
        assert answer.summary.fallback_reason == reason
        assert answer.summary.prefill_node_id == DECODE_ID

    with_pair(client, damage=damage, timeouts=SHORT if damage.__name__.startswith("silent") else PATIENT)


@pytest.mark.parametrize(("expected_seconds", "number"), [(10.0, 0), (10.0, 2), (0.15, 0), (0.15, 2)])
def test_who_waits_no_longer_than_the_router_expected_is_not_taken_for_silent(
    expected_seconds: float, number: int
) -> None:
    """In a queue or, computed in part, between two passes: given up, it would hold up all that decodes here."""

    async def slow(responses: Responses) -> Responses:
        tokens = list[prefill_service_pb2.PrefillResponse]()
        async for response in responses:
            if response.HasField("first_token"):  # which overtakes frames: then the prompt waits for nothing more
                tokens.append(response)
                continue
            if response.HasField("frame") and response.frame.sequence_number == number:
                await asyncio.sleep(2 * SHORT.frame_seconds)
            for token in tokens if response.HasField("summary") else ():
                yield token
            yield response

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT)
        request.placement.estimate.time_to_first_token_seconds = expected_seconds
        answer = await generate(pair, request)

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == ("" if expected_seconds > 1 else BROKEN)

    with_pair(client, damage=slow, timeouts=SHORT)


@pytest.mark.parametrize("damage", [without_summary, with_two_first_tokens_at_the_end])
def test_a_stream_that_breaks_when_only_its_summary_is_missing_is_complete(damage: Damage) -> None:
    """Every frame has proven its bytes and its place, and they cover the prompt: nothing is computed again."""

    async def client(pair: Pair) -> None:
        summary = (await generate(pair, request_of(PROMPT))).summary

        assert (summary.fallback_reason, summary.kv_break_reasons) == ("", [BROKEN])
        assert (summary.prefill_node_id, summary.kv_resume_count, summary.kv_kept_token_count) == (PREFILL_ID, 0, 41)

    with_pair(client, damage=damage)


def test_the_first_token_may_be_the_first_of_the_vocabulary() -> None:
    """Its id is 0, as nothing is in protobuf."""
    prompt = prompt_of(41, 74)

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(prompt))

        assert answer.token_ids == expected_tokens(prompt, 8)
        assert answer.token_ids[0] == 0
        assert not answer.summary.kv_break_reasons

    with_pair(client)


def test_a_node_of_another_revision_refuses_and_names_the_field() -> None:
    """The decode node computes the prompt itself."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "KV_LAYOUT_MISMATCH:model_revision_digest"

    with_pair(client, prefill_runner=other_layout())


def test_a_draining_prefill_node_is_replaced() -> None:
    """It refuses with the reason that the summary repeats."""

    async def client(pair: Pair) -> None:
        pair.prefill.is_draining = True
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "DRAINING"

    with_pair(client)


def test_an_unknown_prefill_node_is_replaced() -> None:
    """The router named one that has gone."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, prefill_node_id="gone"))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "NODE_NOT_FOUND"

    with_pair(client)


def test_a_prefill_node_without_room_is_replaced() -> None:
    """Its refusal is a fallback, not an error of the request."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "OUT_OF_MEMORY"

    with_pair(client, prefill_runner=mock_runner(num_blocks=3))


@pytest.mark.parametrize("peers", ["gone", "restarted"])
@pytest.mark.parametrize("linger_seconds", [0.0, 60.0])
def test_a_stream_outlives_its_nodes_place_in_the_routers_list_for_a_while(peers: str, linger_seconds: float) -> None:
    """A router that has just started knows no node. Once the channel is closed, the rest comes from elsewhere."""
    reached, may_go_on = asyncio.Event(), asyncio.Event()

    async def stalled(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("frame") and response.frame.sequence_number == 2 and not reached.is_set():
                reached.set()
                await may_go_on.wait()
            yield response

    async def client(pair: Pair) -> None:
        answer = asyncio.create_task(generate(pair, request_of(PROMPT)))
        await reached.wait()
        pair.peers.update({PREFILL_ID: pair.peer(epoch=2)} if peers == "restarted" else {})
        if linger_seconds:
            may_go_on.set()
        summary = (await answer).summary

        assert (await answer).token_ids == EXPECTED
        assert summary.kv_break_reasons == ([] if linger_seconds else ["CHANNEL_CLOSED"])
        assert summary.fallback_reason == ("" if linger_seconds or peers == "restarted" else "CHANNEL_CLOSED")

    with_pair(client, damage=stalled, linger_seconds=linger_seconds)


def test_the_end_by_the_first_token_cancels_the_stream() -> None:
    """With max_tokens 1 the KV is not needed any more; the prefill node stops sending it."""
    cancelled = asyncio.Event()

    async def stalled(responses: Responses) -> Responses:
        try:
            async for response in responses:
                yield response
                if response.HasField("first_token"):
                    await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, replace(GREEDY, max_tokens=1)))
        await cancelled.wait()

        assert answer.token_ids == EXPECTED[:1]
        assert answer.summary.fallback_reason == ""
        assert answer.summary.prefill_duration.ToNanoseconds() > 0  # the summary never came

    with_pair(client, damage=stalled)


def test_a_cancelled_request_frees_its_blocks_on_both_nodes() -> None:
    """While its KV is on the way; nothing late lands."""
    reached, cancelled = asyncio.Event(), asyncio.Event()

    async def stalled(responses: Responses) -> Responses:
        try:
            async for response in responses:
                if response.HasField("frame") and response.frame.sequence_number == 2:
                    reached.set()
                    await asyncio.Event().wait()
                yield response
        finally:
            cancelled.set()

    async def client(pair: Pair) -> None:
        call = pair.stub.Generate(request_of(PROMPT))
        await reached.wait()
        call.cancel()
        await cancelled.wait()

    with_pair(client, damage=stalled)


def test_a_cancelled_decode_frees_its_blocks() -> None:
    """After the first tokens. The router is told that it is over: so end all whose stop string the gateway finds."""

    async def client(pair: Pair) -> None:
        call = pair.stub.Generate(request_of(PROMPT, replace(GREEDY, max_tokens=200)))
        async for response in call:
            if response.HasField("tokens"):
                break
        call.cancel()
        while not pair.decode.registration.outcomes:  # noqa: ASYNC110 - there is no event of it
            await asyncio.sleep(0.001)

        (outcome,) = pair.decode.registration.outcomes
        assert outcome == PlacementSummary(placement_id=outcome.placement_id, decode_node_id=DECODE_ID)
        assert outcome.placement_id

    with_pair(client)


def test_a_resumed_request_continues_with_a_remote_prefill() -> None:
    """The prefill node computes prompt and earlier output, and samples at the right position."""
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8, frequency_penalty=0.5, logit_bias={3: 99.6, 9: 99.7})

    async def client(pair: Pair) -> None:
        whole = await generate(pair, request_of(PROMPT, params, prefill_node_id="", request_id="whole"))
        resumed = request_of(PROMPT, params, request_id="resumed", attempt=2, output_token_ids=whole.token_ids[:3])
        rest = await generate(pair, resumed)

        assert len(set(whole.token_ids)) > 1
        assert whole.token_ids[:3] + rest.token_ids == whole.token_ids
        assert rest.summary.fallback_reason == ""
        assert rest.summary.completion_token_count == 5
        assert rest.finished.usage.completion_token_count == 8

    with_pair(client)


@pytest.mark.parametrize(("prefill_node_id", "side"), [(PREFILL_ID, "prefill"), ("", "decode")])
def test_prompt_tokens_are_counted_on_the_side_that_computed_them(prefill_node_id: str, side: str) -> None:
    """What its prefix cache had apart from what it computed."""

    async def client(pair: Pair) -> None:
        for name in ("first", "second"):
            await generate(pair, request_of(PROMPT, prefill_node_id=prefill_node_id, request_id=name))

        assert pair.metrics.counted[names.CACHED_PROMPT_TOKENS] == [(0, side), (40, side)]
        assert pair.metrics.counted[names.COMPUTED_PROMPT_TOKENS] == [(41, side), (1, side)]

    with_pair(client)


def test_logprobs_of_the_first_token_come_from_the_prefill_node() -> None:
    """One entry per token, wherever it was sampled."""
    params = replace(GREEDY, num_top_logprobs=2, max_tokens=3)

    async def client(pair: Pair) -> None:
        entries: list[Any] = []
        async for response in pair.stub.Generate(request_of(PROMPT, params)):
            if response.HasField("tokens"):
                assert len(response.tokens.logprobs) == len(response.tokens.token_ids)
                entries += response.tokens.logprobs

        assert [entry.token_id for entry in entries] == EXPECTED[:3]
        assert all(len(entry.alternatives) == 2 for entry in entries)
        assert all(entry.alternatives[0].token_id == entry.token_id for entry in entries)

    with_pair(client)


REFUSALS: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"model_id": "other"}, grpc.StatusCode.FAILED_PRECONDITION, "model_id"),
    ({"model_revision_digest": "f" * 32}, grpc.StatusCode.FAILED_PRECONDITION, "model_revision_digest"),
    ({"request_id": ""}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ({"request_id": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ({"cache_salt": "ä" * 65}, grpc.StatusCode.INVALID_ARGUMENT, "cache_salt"),
    ({"priority": -101}, grpc.StatusCode.INVALID_ARGUMENT, "priority"),
    ({"prompt": []}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [5, 10**6]}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [-1]}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"prompt": [1] * 256}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"params": SamplingParams(temperature=-1)}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
    ({"params": SamplingParams(max_tokens=0)}, grpc.StatusCode.INVALID_ARGUMENT, "max_tokens"),
]


def test_bad_requests_are_refused_by_field_and_disturb_nobody() -> None:
    """A long generation runs beside them."""

    async def client(pair: Pair) -> None:
        other = asyncio.create_task(
            generate(pair, request_of(PROMPT, replace(GREEDY, max_tokens=200), request_id="other"))
        )
        for fields, code, field in REFUSALS:
            fields = {"prompt": PROMPT, **fields}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await follow(pair.stub.Generate(request_of(**fields)))

            info = error_info(caught.value)
            assert caught.value.code() is code, field
            assert info is not None
            assert info.metadata["field"] == field
        assert (await other).token_ids == expected_tokens(PROMPT, 200)

    with_pair(client)


def test_an_attempt_that_runs_already_is_refused_and_the_first_goes_on() -> None:
    """(request_id, attempt) is unique; the next attempt may run beside it."""
    params = replace(GREEDY, max_tokens=200)
    gate = threading.Event()

    async def client(pair: Pair) -> None:
        pair.decode.engine.call(lambda: assert_opens(gate))  # nothing is computed, and nothing ends, until then
        first = pair.stub.Generate(request_of(PROMPT, params))
        await accepted(first)
        again = pair.stub.Generate(request_of(PROMPT, params))
        await accepted(again)
        gate.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(again)
        second = await generate(pair, request_of(PROMPT, attempt=2))
        whole = await follow(first)

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert info is not None
        assert info.reason == "ATTEMPT_REUSED"
        assert second.token_ids == EXPECTED
        assert whole.token_ids == expected_tokens(PROMPT, 200)

    with_pair(client)


def assert_opens(gate: threading.Event) -> None:
    """Wait for a gate that a test opens."""
    assert gate.wait(TIMEOUT_SECONDS)


async def accepted(call: Any) -> None:
    """Wait until a decode node has taken a request: it is in the engine's queue then."""
    async for response in call:
        assert response.HasField("accepted")
        return


def test_a_draining_decode_node_refuses() -> None:
    """With the reason that sends the gateway elsewhere."""

    async def client(pair: Pair) -> None:
        pair.decode.is_draining = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(pair.stub.Generate(request_of(PROMPT)))

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert info is not None
        assert info.reason == "DRAINING"

    with_pair(client)


def test_many_requests_at_once_say_the_same_as_alone() -> None:
    """Local and remote, with shared prefixes, in pools that force waiting and preemption on both nodes."""

    async def client(pair: Pair) -> None:
        prompts = [prompt_of(5 + 3 * index, seed=index % 3) for index in range(12)]
        answers = await asyncio.gather(
            *(
                generate(
                    pair,
                    request_of(prompt, request_id=f"r{index}", prefill_node_id=PREFILL_ID if index % 3 else ""),
                )
                for index, prompt in enumerate(prompts)
            )
        )

        assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 8) for prompt in prompts]
        assert [answer.summary.fallback_reason for answer in answers] == [""] * 12

    with_pair(
        client, prefill_runner=mock_runner(24), decode_runner=mock_runner(28), shared_memory_bytes=12 * SEGMENT_BYTES
    )


def test_one_changed_byte_of_kv_changes_the_text(transport: TransportChoice) -> None:
    """Where its checksum is made to agree: so right text proves right KV."""
    import crc32c

    from baton.kv.stream import payload_crc32c

    async def forged(responses: Responses) -> Responses:
        crcs = b""
        async for response in responses:
            response.ClearField("request_crc32c")
            if response.HasField("frame"):
                frame: kv_pb2.KvFrame = response.frame
                frame.ClearField("header_crc32c")
                if frame.sequence_number == 1:
                    frame.keys = bytes([frame.keys[0] ^ 1]) + frame.keys[1:]
                    frame.crc32c = payload_crc32c(frame.keys, frame.values)
                crcs += frame.crc32c.to_bytes(4, "little")
            elif response.HasField("summary"):
                response.summary.frames_crc32c = crc32c.crc32c(crcs)
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, bypass_prefix_cache=True))

        assert answer.summary.fallback_reason == ""
        assert answer.token_ids[0] == EXPECTED[0]
        assert answer.token_ids[1:] != EXPECTED[1:]

    # What goes by shared memory passes the damage by.
    with_pair(client, damage=forged, transport="fast" if transport == "shared" else transport)


def test_a_draw_without_a_seed_is_refused() -> None:
    """Its randomness could not be repeated on another node."""

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT, SamplingParams(temperature=1.0, max_tokens=2))
        request.sampling.ClearField("seed")

        with pytest.raises(grpc.aio.AioRpcError, match="seed") as refusal:
            async for _ in pair.stub.Generate(request):
                pass

        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_pair(client)
