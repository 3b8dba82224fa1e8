"""PrefillService over a real channel."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton.engine.events import Failed, FrameLanded, TokenReady
from baton.engine.sampling import SampledToken
from baton.errors import BatonError
from baton.internal.v1 import prefill_service_pb2
from baton.kv.stream import KvFrame
from baton.prefill import prefiller
from baton.prefill.outbox import LoopOutbox
from baton.rpc.status import error_info
from baton.v1 import generation_pb2
from baton.wire.kv import layout_to_proto
from decode.pair import Pair, with_pair
from engine.rig import GREEDY, LAYOUT, expected_tokens, prompt_of
from node.sampling import sampling_to_proto

PROMPT = prompt_of(41)


def request_of(**fields: Any) -> prefill_service_pb2.PrefillRequest:
    """Return a good request but for `fields`."""
    good = {
        "request_id": "r",
        "attempt": 1,
        "token_ids": PROMPT,
        "expected_layout": layout_to_proto(LAYOUT),
        "sampling": sampling_to_proto(GREEDY),
    }
    return prefill_service_pb2.PrefillRequest(**{**good, **fields})


def test_a_stream_is_layout_then_frames_then_summary() -> None:
    """With the first token somewhere before the summary; layers in order within each chunk."""

    async def client(pair: Pair) -> None:
        messages = [message async for message in pair.prefill_stub.Prefill(request_of(chunk_token_count=11))]
        kinds = [message.WhichOneof("element") for message in messages]
        frames = [message.frame for message in messages if message.HasField("frame")]

        assert kinds[0] == "layout"
        assert kinds[-1] == "summary"
        assert kinds.count("first_token") == 1
        assert [(frame.token_begin, frame.layer_begin) for frame in frames] == [
            (token, layer) for token in (0, 11, 22, 33) for layer in range(3)
        ]
        first = next(message.first_token for message in messages if message.HasField("first_token"))
        assert first.token.token_id == expected_tokens(PROMPT, 1)[0]

    with_pair(client)


def test_no_frame_grows_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are sent one by one and passes are cut, however much a pass may compute and a caller may ask for."""
    monkeypatch.setattr(prefiller, "MAX_FRAME_BYTES", 200)

    async def client(pair: Pair) -> None:
        messages = [message async for message in pair.prefill_stub.Prefill(request_of(layers_per_frame=3))]
        sizes = [
            len(message.frame.keys) + len(message.frame.values) for message in messages if message.HasField("frame")
        ]

        assert max(sizes) == 4 * 48  # 4 positions of 48 bytes
        assert sum(sizes) == 41 * LAYOUT.num_token_bytes()

    with_pair(client)


REFUSALS: list[tuple[dict[str, Any], grpc.StatusCode, str]] = [
    ({"request_id": ""}, grpc.StatusCode.INVALID_ARGUMENT, "request_id"),
    ({"cache_salt": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "cache_salt"),
    ({"priority": 101}, grpc.StatusCode.INVALID_ARGUMENT, "priority"),
    ({"token_ids": []}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"token_ids": [10**6]}, grpc.StatusCode.INVALID_ARGUMENT, "prompt_token_ids"),
    ({"kv_token_begin": 41}, grpc.StatusCode.INVALID_ARGUMENT, "kv_token_begin"),
    ({"kv_token_begin": -1}, grpc.StatusCode.INVALID_ARGUMENT, "kv_token_begin"),
    ({"output_token_count": 41}, grpc.StatusCode.INVALID_ARGUMENT, "output_token_count"),
    ({"stream_number": -1}, grpc.StatusCode.INVALID_ARGUMENT, "stream_number"),
    ({"layer_token_begins": [0, 0]}, grpc.StatusCode.INVALID_ARGUMENT, "layer_token_begins"),
    ({"layer_token_begins": [0, 0, 42]}, grpc.StatusCode.INVALID_ARGUMENT, "layer_token_begins"),
    ({"layer_token_begins": [1, 1, 2]}, grpc.StatusCode.INVALID_ARGUMENT, "layer_token_begins"),
    ({"layer_token_begins": [0, -1, 0]}, grpc.StatusCode.INVALID_ARGUMENT, "layer_token_begins"),
    ({"layers_per_frame": -1}, grpc.StatusCode.INVALID_ARGUMENT, "layers_per_frame"),
    ({"wire_dtype": generation_pb2.KV_DTYPE_FLOAT32}, grpc.StatusCode.INVALID_ARGUMENT, "wire_dtype"),
    ({"wire_dtype": 99}, grpc.StatusCode.INVALID_ARGUMENT, "wire_dtype"),
    ({"wire_dtype": generation_pb2.KV_DTYPE_AFFINE8}, grpc.StatusCode.INVALID_ARGUMENT, "wire_dtype"),
    ({"value_wire_dtype": generation_pb2.KV_DTYPE_BFLOAT16}, grpc.StatusCode.INVALID_ARGUMENT, "value_wire_dtype"),
    ({"expected_layout": None}, grpc.StatusCode.INVALID_ARGUMENT, "expected_layout.rope_state"),
    (
        {"expected_layout": layout_to_proto(replace(LAYOUT, tokenizer_digest="f" * 32))},
        grpc.StatusCode.FAILED_PRECONDITION,
        "tokenizer_digest",
    ),
]


@pytest.mark.parametrize(("fields", "code", "field"), REFUSALS)
def test_a_bad_request_is_refused_by_the_name_of_the_field(
    fields: dict[str, Any], code: grpc.StatusCode, field: str
) -> None:
    """Before anything is computed, and nothing of it is left."""

    async def client(pair: Pair) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in pair.prefill_stub.Prefill(request_of(**fields)):
                pass

        info = error_info(caught.value)
        assert caught.value.code() is code
        assert info is not None
        assert info.metadata["field"] == field

    with_pair(client)


def test_a_caller_that_stops_reading_and_cancels_leaves_nothing() -> None:
    """Also where the stream was held back by the caller's window."""

    async def client(pair: Pair) -> None:
        for index in range(5):
            call = pair.prefill_stub.Prefill(request_of(request_id=f"r{index}"))
            async for _ in call:
                break
            call.cancel()

    with_pair(client)


@pytest.mark.parametrize(("byte_count", "message_byte_count", "sizes"), [(0, 0, []), (5, 2, [2, 2, 1]), (4, 0, [4])])
def test_a_probe_sends_as_many_bytes_as_asked(byte_count: int, message_byte_count: int, sizes: list[int]) -> None:
    """In messages of the size asked."""

    async def client(pair: Pair) -> None:
        request = prefill_service_pb2.ProbeLinkRequest(byte_count=byte_count, message_byte_count=message_byte_count)

        assert [len(message.payload) async for message in pair.prefill_stub.ProbeLink(request)] == sizes

    with_pair(client)


@pytest.mark.parametrize(("byte_count", "message_byte_count"), [(-1, 0), (2**28 + 1, 0), (1, -1), (1, 2**22 + 1)])
def test_a_probe_out_of_bounds_is_refused(byte_count: int, message_byte_count: int) -> None:
    """A caller may not make the node send without end."""

    async def client(pair: Pair) -> None:
        request = prefill_service_pb2.ProbeLinkRequest(byte_count=byte_count, message_byte_count=message_byte_count)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in pair.prefill_stub.ProbeLink(request):
                pass

        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_pair(client)


def test_the_first_token_overtakes_frames_and_so_does_a_failure() -> None:
    """The rest keeps its order."""

    async def run() -> None:
        outbox = LoopOutbox(asyncio.get_running_loop())
        frames = [KvFrame(layer, 1, 0, 1, b"", b"") for layer in range(2)]
        token, landed = TokenReady(0, SampledToken(5)), FrameLanded()
        waiting = asyncio.create_task(outbox.get())
        await asyncio.sleep(0)
        for item in (*frames, token, landed):
            outbox.put(item)

        assert await waiting == token
        assert [await outbox.get() for _ in range(2)] == frames
        failed = Failed(BatonError("x"))
        outbox.put(failed)
        assert await outbox.get() == failed

    asyncio.run(asyncio.wait_for(run(), 20))
