"""Must show 6: a prefill node in another language, written from the .proto files alone, serves a decode node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.v1.generation_pb2 import KV_TRANSPORT_FAST, KV_TRANSPORT_GRPC
from decode.grants import key_of
from decode.pair import PREFILL_ID, Pair, generate, request_of, with_pair
from engine.rig import EOS, LAYOUT, VOCABULARY_SIZE, expected_tokens, prompt_of

_PROTOS = Path(__file__).parents[3] / "protos"
PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)


@contextmanager
def prefill_node(folder: Path, *arguments: str) -> Iterator[str]:
    """Run the node; give its address."""
    command = (
        "node",
        "prefill_node.js",
        str(_PROTOS),
        str(VOCABULARY_SIZE),
        str(EOS),
        key_of(PREFILL_ID).hex(),
        *arguments,
    )
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def join(pair: Pair, address: str) -> None:
    """Have the router name the node in the place of Baton's own."""
    peer = pair.peer(epoch=2)
    peer.address = peer.fast_address = address
    await pair.name_peers(peer)


@pytest.mark.parametrize("transport", ["grpc", "fast"])
def test_a_decode_node_goes_on_from_the_kv_of_a_node_in_javascript(node_folder: Path, transport: str) -> None:
    """By either implementation; its tokens depend on every byte that the node made, and on nothing else."""

    async def client(pair: Pair) -> None:
        await join(pair, address)
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == ""
        assert answer.summary.kv_break_reasons == []
        assert answer.summary.prefill_node_id == PREFILL_ID
        assert answer.summary.kv_byte_count == len(PROMPT) * LAYOUT.num_token_bytes()
        assert answer.summary.kv_frame_count == 12
        assert answer.summary.kv_transport == (KV_TRANSPORT_FAST if transport == "fast" else KV_TRANSPORT_GRPC)

    with prefill_node(node_folder) as address:
        with_pair(client, transport=cast(TransportChoice, transport))


@pytest.mark.parametrize("num_frames", [1, 5, 12])
def test_a_broken_stream_of_a_node_in_javascript_is_resumed(node_folder: Path, num_frames: int) -> None:
    """It sends what each layer lacks, although it has kept nothing: the contract is all in the request."""

    async def client(pair: Pair) -> None:
        await join(pair, address)
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_break_reasons == ["UNAVAILABLE"]
        assert answer.summary.kv_byte_count == len(PROMPT) * LAYOUT.num_token_bytes()
        assert (answer.summary.kv_resume_count, answer.summary.fallback_reason) == resumed

    resumed = (1, "") if num_frames < 12 else (0, "UNAVAILABLE")  # all KV is there: the next token is computed here
    with prefill_node(node_folder, str(num_frames)) as address:
        with_pair(client)
