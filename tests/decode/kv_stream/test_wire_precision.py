"""A KV stream in a narrower number format: negotiated per stream, for K and V apart, by either transport."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.engine.runners.mock import MockRunner
from baton.errors import BatonError
from baton.internal.v1 import decode_service_pb2, prefill_service_pb2
from baton.kv.kv_format import KvDtype, Packed, WireFormat, token_bytes
from baton.rpc.status import error_info
from baton.v1 import generation_pb2
from baton.wire.kv import dtype_to_proto
from decode.pair import PREFILL_ID, SPARE_ID, Pair, Responses, generate, request_of, with_pair
from engine.rig import INFO, LAYOUT, expected_tokens, mock_runner, prompt_of

PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)
F32, F16, BF16, INT8, FP8 = KvDtype.FLOAT32, KvDtype.FLOAT16, KvDtype.BFLOAT16, KvDtype.INT8, KvDtype.FP8
NUM_BLOCKS = 12
"""Full blocks of the prompt and what follows it, but for the last token, whose K and V nobody computes."""


def wired_request(keys: KvDtype, values: KvDtype, **fields: Any) -> decode_service_pb2.DecodeServiceGenerateRequest:
    """Return a request placed with a wire format."""
    request = request_of(PROMPT, **fields)
    request.placement.wire_dtype = dtype_to_proto(keys)
    request.placement.value_wire_dtype = dtype_to_proto(values)
    return request


@pytest.mark.parametrize("transport", ["fast", "grpc"])
@pytest.mark.parametrize(("keys", "values"), [(INT8, INT8), (F16, INT8), (FP8, F16), (FP8, INT8)])
def test_the_stream_has_the_format_that_the_placement_names(
    transport: TransportChoice, keys: KvDtype, values: KvDtype
) -> None:
    """With the bytes of it, scales counted; a mock loses nothing by it, so every byte came right."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(keys, values))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == ""
        assert answer.summary.key_wire_dtype == dtype_to_proto(keys)
        assert answer.summary.value_wire_dtype == dtype_to_proto(values)
        assert answer.summary.kv_byte_count == 41 * sum(token_bytes(LAYOUT, WireFormat(keys, values)))

    with_pair(client, transport=transport)


@pytest.mark.parametrize(("keys", "values"), [(INT8, INT8), (INT8, F16), (F16, FP8)])
def test_what_came_rounded_is_in_no_prefix_cache(keys: KvDtype, values: KvDtype) -> None:
    """Neither the prompt nor what was generated after it: whoever takes a block over takes it for exact."""

    async def client(pair: Pair) -> None:
        rounded = await generate(pair, wired_request(keys, values))
        num_kept = await pair.decode.ask(lambda: len(pair.decode.engine.scheduler.pool.hashes))
        exact = await generate(pair, wired_request(F16, F16, request_id="exact"))
        again = await generate(pair, wired_request(keys, values, request_id="again"))

        assert num_kept == 0
        assert [answer.token_ids for answer in (rounded, exact, again)] == [EXPECTED] * 3
        assert [each.summary.decode_cached_token_count for each in (rounded, exact, again)] == [0, 0, 40]

    with_pair(client)


def runner_of(dtype: KvDtype) -> MockRunner:
    """Return a runner whose cache has a format of its own."""
    return mock_runner(info=replace(INFO, layout=replace(LAYOUT, dtype=dtype)))


@pytest.mark.parametrize("transport", ["fast", "grpc"])
@pytest.mark.parametrize(
    ("sender", "receiver", "wire", "num_kept"),
    [
        (F32, F16, F16, 0),
        (F32, BF16, BF16, 0),
        (F16, BF16, BF16, 0),
        (BF16, F16, F16, 0),
        (F32, F32, BF16, 0),
        (F16, F32, INT8, 0),
        (F16, F32, F16, NUM_BLOCKS),
        (BF16, F32, BF16, NUM_BLOCKS),
        (F32, F32, F32, NUM_BLOCKS),
    ],
)
def test_kv_of_another_cache_is_kept_only_where_no_step_rounds_it(
    transport: TransportChoice, sender: KvDtype, receiver: KvDtype, wire: KvDtype, num_kept: int
) -> None:
    """The prefill node rounds to what the decode node has: there the frames look like its own."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(wire, wire))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == ""
        assert await pair.decode.ask(lambda: len(pair.decode.engine.scheduler.pool.hashes)) == num_kept

    runners = {"prefill_runner": runner_of(sender), "decode_runner": runner_of(receiver)}
    with_pair(client, transport=transport, **runners)


@pytest.mark.parametrize(("first", "second"), [(F32, F16), (F16, F32)])
def test_one_rounded_stream_of_several_keeps_all_out_of_the_prefix_cache(first: KvDtype, second: KvDtype) -> None:
    """A stream breaks, and a node whose cache has another format sends the rest."""
    # How many frames the second stream has depends on how far the prompt came before the first one broke.
    num_frames_passed = iter([3, 0])

    async def ending(responses: Responses) -> Responses:
        end = next(num_frames_passed)
        async for response in responses:
            if response.HasField("frame") and response.frame.sequence_number == end:
                return
            yield response

    async def client(pair: Pair) -> None:
        request = wired_request(F16, F16, alternative_node_ids=[SPARE_ID])
        request.placement.alternatives[0].wire_dtype = dtype_to_proto(F16)
        answer = await generate(pair, request)

        assert answer.token_ids == EXPECTED
        assert (answer.summary.prefill_node_id, answer.summary.fallback_reason) == (SPARE_ID, "")
        assert pair.spare_side.servicer.requests[0].kv_token_begin > 0
        assert await pair.decode.ask(lambda: pair.decode.engine.scheduler.pool.hashes) == []

    with_pair(client, damage=ending, prefill_runner=runner_of(first), spare_runner=runner_of(second))


def test_what_is_computed_after_a_rounded_beginning_is_in_no_prefix_cache() -> None:
    """A stream that breaks leaves its KV to a request that goes on here; attention has seen it."""

    async def cut(responses: Responses) -> Responses:
        num_frames = 0
        async for response in responses:
            num_frames += response.HasField("frame")
            if num_frames > 3:
                return
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(INT8, INT8))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_break_reasons
        assert await pair.decode.ask(lambda: pair.decode.engine.scheduler.pool.hashes) == []

    with_pair(client, damage=cut)


def test_streams_of_different_formats_run_side_by_side() -> None:
    """The format belongs to the stream, not to the pair of nodes."""

    async def client(pair: Pair) -> None:
        for turn, (keys, values) in enumerate([(INT8, FP8), (F16, F16), (FP8, INT8)]):
            request = wired_request(keys, values, request_id=f"r{turn}", cache_salt=str(turn))

            assert (await generate(pair, request)).token_ids == EXPECTED

    with_pair(client, transport="fast")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"wire_dtype": generation_pb2.KV_DTYPE_BFLOAT16}, "wire_dtype"),
        ({"wire_dtype": 77}, "wire_dtype"),
        ({"value_wire_dtype": generation_pb2.KV_DTYPE_AFFINE8}, "value_wire_dtype"),
    ],
)
def test_a_decode_node_refuses_a_format_in_which_its_cache_cannot_travel(fields: dict[str, Any], field: str) -> None:
    """By the name of the field, before it calls anybody."""

    async def client(pair: Pair) -> None:
        request = request_of(PROMPT)
        for name, value in fields.items():
            setattr(request.placement, name, value)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(pair, request)

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert info is not None
        assert info.metadata["field"] == field
        assert pair.servicer.requests == []

    with_pair(client)


@pytest.mark.parametrize(
    ("keys", "values", "field"),
    [
        (generation_pb2.KV_DTYPE_FLOAT16, generation_pb2.KV_DTYPE_INT8, "wire_dtype"),
        (4, generation_pb2.KV_DTYPE_FP8, "value_wire_dtype"),
    ],
)
def test_a_stream_in_another_format_than_asked_for_is_refused(keys: int, values: int, field: str) -> None:
    """The decode node computes the prompt itself, and says which field differed."""

    async def mislabelled(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("layout"):
                response.layout.wire_dtype, response.layout.value_wire_dtype = keys, values
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(INT8, INT8))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == f"KV_LAYOUT_MISMATCH:{field}"

    with_pair(client, damage=mislabelled)


@pytest.mark.parametrize("part", ["keys", "values", "key_scales", "value_scales"])
def test_a_changed_byte_of_elements_or_scales_breaks_the_stream(part: str) -> None:
    """The checksum covers the wire's bytes, all of them."""

    async def flip(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("frame"):
                content = bytearray(getattr(response.frame, part))
                content[-1] ^= 1
                setattr(response.frame, part, bytes(content))
            yield prefill_service_pb2.PrefillResponse.FromString(response.SerializeToString())

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(INT8, FP8))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == "KV_STREAM_BROKEN"
        assert answer.summary.prefill_node_id != PREFILL_ID

    with_pair(client, damage=flip)


class FailingCodec:
    """Fails on one side."""

    def __init__(self, failing: str) -> None:
        self._failing = failing

    def pack(self, data: bytes | memoryview, cache: KvDtype, wire: KvDtype, head_dim: int) -> Packed:
        """Pack, or fail."""
        return self._do("pack", data, cache, wire, head_dim)

    def unpack(self, packed: Packed, cache: KvDtype, wire: KvDtype, head_dim: int) -> bytes | memoryview:
        """Unpack, or fail."""
        return self._do("unpack", packed, cache, wire, head_dim)

    def _do(self, name: str, *arguments: Any) -> Any:
        if name == self._failing:
            raise BatonError("no arithmetic today")
        return getattr(type(mock_runner()).wire_codec, name)(*arguments)


@pytest.mark.parametrize("failing", ["pack", "unpack"])
@pytest.mark.parametrize("transport", ["fast", "grpc"])
def test_a_codec_that_fails_ends_the_stream_and_not_the_request(failing: str, transport: TransportChoice) -> None:
    """The prompt is computed by the decode node; nothing is left on either."""
    runners = [mock_runner(), mock_runner()]
    for runner in runners:
        runner.wire_codec = FailingCodec(failing)  # type: ignore[assignment]

    async def client(pair: Pair) -> None:
        answer = await generate(pair, wired_request(INT8, INT8))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason

    with_pair(client, prefill_runner=runners[0], decode_runner=runners[1], transport=transport)
