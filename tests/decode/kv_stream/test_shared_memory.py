"""Two nodes of one host: payloads by shared memory, headers by either implementation, and nothing else is different."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.grpc_sockets.headers import Code, Status
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.kv_transport.frame_codec import SharedMemoryWriter, open_shared_memory
from baton.kv_transport.kv_services import ReceivedRequest
from baton.shm.lender import NAME_PREFIX, SEGMENT_BYTES, Loan, _Tenancy
from baton.v1.generation_pb2 import KV_TRANSPORT_FAST, KV_TRANSPORT_GRPC, KV_TRANSPORT_SHARED
from decode.pair import PREFILL_ID, DamagedFastPath, Pair, Responses, generate, request_of, with_pair
from engine.rig import GREEDY, expected_tokens, prompt_of
from prefill.test_servicer import request_of as prefill_request_of
from shm.test_loan import names_of_shared_memory

PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)
Change = Callable[[kv_pb2.KvFrame], None]


async def payloads_are_elsewhere(responses: Responses) -> Responses:
    """Pass on what has no payload of its own."""
    async for response in responses:
        if response.HasField("frame"):
            frame = response.frame
            assert not any((frame.keys, frame.values, frame.key_scales, frame.value_scales))
            assert min(frame.shared.keys_byte_count, frame.shared.values_byte_count) > 0
        yield response


@pytest.mark.parametrize("headers", ["fast", "grpc"])
def test_only_headers_travel_on_the_stream(headers: str) -> None:
    """By the fast path, and by the gRPC library where there is none; the tokens are the same."""

    async def client(pair: Pair) -> None:
        if headers == "grpc":
            await pair.reconnect(2, "")
        for index in range(3):
            answer = await generate(pair, request_of(PROMPT, request_id=f"r{index}", cache_salt=f"{index}"))

            assert answer.token_ids == EXPECTED
            summary = answer.summary
            assert (summary.prefill_node_id, summary.kv_transport) == (PREFILL_ID, KV_TRANSPORT_SHARED)
            assert (summary.fallback_reason, list(summary.kv_break_reasons)) == ("", [])
        await pair.settle()
        gc.collect()
        assert pair.lender.num_bytes == SEGMENT_BYTES, "one after the other, the streams used the same memory"

    with_pair(client, damage=payloads_are_elsewhere, transport="shared")


@pytest.mark.parametrize("headers", ["fast", "grpc"])
def test_a_frame_is_let_go_before_the_next_one_comes(headers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sender may need the memory for that one: here it sends none before it has got the memory back."""
    release = _Tenancy.release

    async def one_by_one(responses: Responses) -> Responses:
        released, loop = asyncio.Semaphore(0), asyncio.get_running_loop()

        def noted(tenancy: _Tenancy, begin: int) -> None:
            release(tenancy, begin)
            loop.call_soon_threadsafe(released.release)

        monkeypatch.setattr(_Tenancy, "release", noted)
        async for response in responses:
            yield response
            if response.HasField("frame"):
                await released.acquire()

    async def client(pair: Pair) -> None:
        if headers == "grpc":
            await pair.reconnect(2, "")
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == []
        assert answer.summary.kv_frame_count > 2

    with_pair(client, damage=one_by_one, transport="shared")


def test_payloads_go_with_their_headers_where_there_is_no_memory_for_them() -> None:
    """Another stream has all of it: the summary says so."""

    async def client(pair: Pair) -> None:
        kept = pair.lender.lend()
        request = prefill_service_pb2.PrefillRequest()
        request.shared_memory.address, request.shared_memory.token = kept.address, kept.token
        other = prefill_request_of(request_id="other")
        other.MergeFrom(request)
        call = pair.prefill_stub.Prefill(other)
        layout = await call.read()
        assert layout.uses_shared_memory
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_transport == KV_TRANSPORT_FAST
        assert answer.summary.kv_transport_reason == "SHARED_MEMORY_FULL"
        call.cancel()
        kept.close()

    with_pair(client, transport="auto", shared_memory_bytes=SEGMENT_BYTES)


def test_memory_that_a_refused_stream_has_taken_is_lent_to_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library carries the stream to its end; whoever took the offer before may still write."""
    takers = list[SharedMemoryWriter | None]()

    def refuse(_: object, request: ReceivedRequest, call: ServerCall) -> None:
        takers.append(open_shared_memory(request.message, 0.0))
        call.end(Status(Code.UNKNOWN, "not as it should be"))

    monkeypatch.setattr(DamagedFastPath, "serve", refuse)

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert (answer.summary.kv_transport, answer.summary.kv_transport_reason) == (KV_TRANSPORT_GRPC, "REFUSED")
        assert [taker is not None for taker in takers] == [True]
        await pair.settle()
        gc.collect()
        assert pair.lender.num_bytes == 0, "it is neither lent nor idle"

    with_pair(client, transport="auto")


@pytest.mark.parametrize(
    ("choice", "transport", "reason"),
    [("auto", KV_TRANSPORT_FAST, ""), ("grpc", KV_TRANSPORT_GRPC, ""), ("shared", KV_TRANSPORT_FAST, "NOT_SHARED")],
)
def test_without_shared_memory_everything_is_as_ever(choice: TransportChoice, transport: int, reason: str) -> None:
    """Only whoever allows nothing else computes the prompt itself, and says why."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert (answer.summary.kv_transport, answer.summary.fallback_reason) == (transport, reason)

    with_pair(client, transport=choice, shared_memory_bytes=0)


def test_an_offer_that_cannot_be_reached_changes_nothing() -> None:
    """As on another host: the receiver's socket is not there."""

    async def client(pair: Pair) -> None:
        pair.lender.address = b"\0" + NAME_PREFIX.encode() + b"elsewhere"
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert (answer.summary.kv_transport, answer.summary.kv_transport_reason) == (KV_TRANSPORT_FAST, "")
        assert answer.summary.kv_frame_count > 0

    with_pair(client, transport="auto")


def _elsewhere(frame: kv_pb2.KvFrame) -> None:
    frame.shared.offset += 64


def _outside(frame: kv_pb2.KvFrame) -> None:
    frame.shared.offset = SEGMENT_BYTES


def _negative(frame: kv_pb2.KvFrame) -> None:
    frame.shared.keys_byte_count *= -1


def _both(frame: kv_pb2.KvFrame) -> None:
    frame.keys = b"x" * frame.shared.keys_byte_count


@pytest.mark.parametrize("change", [_elsewhere, _outside, _negative, _both])
@pytest.mark.parametrize("fast", [True, False])
def test_a_wrong_reference_breaks_the_stream_and_no_more(change: Change, fast: bool) -> None:
    """The prompt is asked for again from where it broke, and computed here at last."""

    async def damage(responses: Responses) -> Responses:
        index = 0
        async for response in responses:
            if response.HasField("frame"):
                index += 1
                if index == 2:
                    change(response.frame)
            yield response

    async def client(pair: Pair) -> None:
        if not fast:
            await pair.reconnect(2, "")
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert len(answer.summary.kv_break_reasons) >= 1

    with_pair(client, damage=damage, transport="shared")


def test_a_reference_to_memory_that_was_never_lent_breaks_the_stream() -> None:
    """A sender may not make one up."""

    async def damage(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("frame"):
                response.frame.shared.keys_byte_count = len(response.frame.keys)
                response.frame.ClearField("keys")
                response.frame.ClearField("values")
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == ["KV_STREAM_BROKEN"] * 2

    with_pair(client, damage=damage, transport="grpc")


def test_a_flipped_bit_in_the_memory_is_noticed() -> None:
    """Checksums are over what the receiver reads."""

    async def client(pair: Pair) -> None:
        lend = pair.lender.lend
        flips = iter(range(1))

        def lend_badly() -> Loan:
            loan = lend()
            view = loan.view

            def flipping(begin: int, num_bytes: int) -> memoryview:
                found = view(begin, num_bytes)
                if next(flips, None) is not None:
                    found[num_bytes // 2] ^= 1
                return found

            loan.view = flipping  # type: ignore[method-assign]
            return loan

        pair.lender.lend = lend_badly  # type: ignore[method-assign]
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert len(answer.summary.kv_break_reasons) == 1
        assert answer.summary.kv_resume_count == 1

    with_pair(client, transport="shared")


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="looks at what Linux knows of shared memory")
def test_nothing_is_left_of_streams_that_were_cancelled() -> None:
    """No memory, no descriptors, no names."""

    async def client(pair: Pair) -> None:
        names = names_of_shared_memory()
        for fast in pair.peers._fast.values():
            assert [message async for message in fast.probe(0, 60)] == []  # later connections would count
        await generate(pair, request_of(PROMPT, request_id="warm"))
        before = len(os.listdir("/dev/fd"))
        params = replace(GREEDY, max_tokens=200)
        for index in range(8):
            call = pair.stub.Generate(request_of(PROMPT, params, request_id=f"r{index}", cache_salt=f"{index}"))
            await call.read()
            assert names_of_shared_memory() <= names
            call.cancel()
        await generate(pair, request_of(PROMPT, request_id="last", cache_salt="last"))
        while pair.lender.num_bytes > SEGMENT_BYTES or len(os.listdir("/dev/fd")) > before:
            gc.collect()
            await asyncio.sleep(0)

        assert names_of_shared_memory() <= names

    with_pair(client, transport="shared")
