"""baton.grpc_sockets and @grpc/grpc-js understand each other, whichever side calls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson

from baton.grpc_sockets.headers import CallError, Code
from baton.grpc_sockets.server_connection import ServerCall
from decode.grants import grant_prefill
from decode.pair import DECODE_ID, PREFILL_ID, Pair, with_pair
from engine.rig import expected_tokens
from grpc_sockets.peers import PATH, Listener, connected, serving
from grpc_sockets.test_server import pattern, sizes_asked
from prefill.test_servicer import PROMPT, request_of

_PROTOS = Path(__file__).parents[2] / "protos"
_RUN_SECONDS = 180
_SIZES = (0, 1, 16384, 65535, 3_000_003)
_QUESTION = " ".join(map(str, _SIZES))


def test_node_receives_a_stream(node_folder: Path) -> None:
    """Messages larger than windows, metadata, and a status with details."""

    def answer(call: ServerCall) -> None:
        assert call.metadata["x-bin"] == b"\xff\x00\x01"
        assert call.remaining_seconds() is not None
        sizes_asked(call)
        raise CallError(Code.NOT_FOUND, "Größe 100%", b"\x00\x01\xff")

    with serving(answer) as port:
        command = ("node", "stream_bytes.js", "receive", f"127.0.0.1:{port}", _QUESTION)
        done = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=_RUN_SECONDS)

    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "messages": [{"size": size, "isRight": True} for size in _SIZES],
        "code": 5,
        "message": "Größe 100%",
        "details": ["0001ff"],
    }


@pytest.fixture
def node_port(node_folder: Path) -> Iterator[int]:
    """Return the port of a server in Node."""
    command = ("node", "stream_bytes.js", "serve")
    with subprocess.Popen(command, cwd=node_folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_node_sends_a_stream(node_port: int) -> None:
    """The same, the other way round; twice, so that header compression has something to refer to."""
    with connected(node_port) as connection:
        for _ in range(2):
            listener = Listener()
            call = connection.call(PATH, _QUESTION.encode(), listener, metadata={"x": "y"}, timeout_seconds=60)

            assert listener.result() == (Code.DATA_LOSS, "Größe 100%", b"\x00\x01\xff")
            assert listener.messages == [pattern(size) for size in _SIZES]
            call.release(sum(_SIZES))


def test_node_receives_the_kv_of_a_prompt_by_the_fast_path(node_folder: Path) -> None:
    """From the .proto files alone: layout, frames, first token and summary, and every byte as grpcio gets it."""
    request = request_of(chunk_token_count=11, bypass_prefix_cache=True)
    grant_prefill(request, PREFILL_ID, DECODE_ID)

    async def client(pair: Pair) -> None:
        command = ("node", "receive_kv.js", str(_PROTOS), f"127.0.0.1:{pair.fast_port}")
        process = await asyncio.create_subprocess_exec(
            *command,
            MessageToJson(request, preserving_proto_field_name=True),
            cwd=node_folder,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _RUN_SECONDS)
        request.attempt = 2
        own = [response async for response in pair.prefill_stub.Prefill(request)]

        received = json.loads(output)
        frames = [response.frame for response in own if response.HasField("frame")]
        digest = hashlib.sha256(b"".join(frame.keys + frame.values for frame in frames)).hexdigest()
        assert received["code"] == 0
        assert received["kinds"][0] == "layout"
        assert received["kinds"][-1] == "summary"
        assert received["summary"]["frame_count"] == len(frames) == received["kinds"].count("frame")
        assert (received["digest"], received["numBytes"]) == (digest, received["summary"]["byte_count"])
        assert received["firstToken"] == expected_tokens(PROMPT, 1)[0]

    with_pair(client)
