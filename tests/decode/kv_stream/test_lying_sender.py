"""A sender that proves what it sends and errs, or that is not the node which the router meant."""

from __future__ import annotations

import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.internal.v1.prefill_service_pb2 import PrefillResponse
from baton.kv import stream
from decode.pair import Pair, Responses, generate, request_of, with_pair
from engine.rig import expected_tokens, prompt_of

PROMPT = prompt_of(41)
TRANSPORTS: tuple[TransportChoice, ...] = ("grpc", "fast", "shared")


def proven(frame: PrefillResponse, key: int) -> PrefillResponse:
    """Return the message of a frame whose header's checksum fits what it says."""
    said = frame.frame
    place = stream.KvFrame(said.layer_begin, said.layer_count, said.token_begin, said.token_count, b"", b"")
    said.header_crc32c = stream.header_crc32c(key, said.sequence_number, place, said.crc32c)
    return frame


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_nothing_counts_of_a_stream_whose_sender_contradicts_itself(transport: TransportChoice) -> None:
    """It says of layer 0 that it is layer 1, which is due just as well, until layer 1 itself comes."""
    num_streams = 0

    async def misplaced(responses: Responses) -> Responses:
        nonlocal num_streams
        num_streams += 1
        is_first, key = num_streams == 1, 0
        async for response in responses:
            key = response.request_crc32c or key
            if is_first and response.HasField("frame") and response.frame.sequence_number == 0:
                response.frame.layer_begin = 1
                response = proven(response, key)
            yield response

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT)
        request.placement.layers_per_frame = 1
        answer = await generate(pair, request)

        assert answer.token_ids == expected_tokens(PROMPT, 8)
        assert list(answer.summary.kv_break_reasons) == ["KV_STREAM_BROKEN"]
        assert answer.summary.kv_kept_token_count == 0

    with_pair(client, damage=misplaced, transport=transport)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kv_of_another_process_than_the_router_has_named_is_not_taken(transport: TransportChoice) -> None:
    """It cannot say what the named one would; the prompt is computed here."""

    async def other(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("layout"):
                response.transfer_answer = bytes(32)
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == expected_tokens(PROMPT, 8)
        assert answer.summary.fallback_reason == "TRANSFER_NOT_GRANTED:transfer_answer"

    with_pair(client, damage=other, transport=transport)


def test_kv_that_no_router_has_granted_is_not_asked_for() -> None:
    """The node that was named hears nothing."""

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT, alternative_node_ids=["prefill-2"])
        request.placement.transfer.claims = b""  # set: the test's router grants nothing then
        request.placement.alternatives[0].transfer.claims = b""
        answer = await generate(pair, request)

        assert answer.token_ids == expected_tokens(PROMPT, 8)
        assert list(answer.summary.kv_break_reasons) == ["TRANSFER_NOT_GRANTED:claims"] * 2
        assert answer.summary.fallback_reason == "TRANSFER_NOT_GRANTED:claims"
        assert pair.servicer.requests == []

    with_pair(client)
