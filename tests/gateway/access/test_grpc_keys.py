"""Keys are looked at before messages."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path

import grpc
import pytest

from baton.gateway.access.api_keys import ApiKey, ApiKeys
from baton.gateway.server import RunningGateway
from baton.grpc_sockets.frames import PREFACE, FrameType, pack_header, settings_frame, unpack_header
from baton.grpc_sockets.headers import HeaderDecoder, fixed_block, request_headers
from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import FakeCluster, Loop

METHOD = "/baton.v1.GenerationService/Generate"
_END_HEADERS = 4


def test_who_shows_no_key_is_refused_before_the_message(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """Of a call, the head is all that has come."""
    keys = tmp_path / "keys"
    keys.write_text("me:secret\n")
    with loop.running(cluster, api_keys_file=keys) as gateway:
        assert _status_of_head(gateway, {}) == "16"
        assert _status_of_head(gateway, {"authorization": "Bearer wrong"}) == "16"


def test_who_shows_no_key_writes_no_labels(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """A method that is none is told so, to whomever: its name would stay in the metrics."""
    keys = tmp_path / "keys"
    keys.write_text("me:secret\n")
    with loop.running(cluster, api_keys_file=keys) as gateway:
        for path in ("/baton.v1.GenerationService/Guessed", "/baton.Made/Up"):
            assert _status_of_head(gateway, {}, path) == "12"


def test_a_key_is_looked_up_once(
    loop: Loop, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has its own, whoever calls beside it."""
    found: list[str] = []
    authenticate = ApiKeys.authenticate

    def count(keys: ApiKeys, headers: Mapping[str, str]) -> ApiKey:
        key = authenticate(keys, headers)
        found.append(key.name)
        return key

    monkeypatch.setattr(ApiKeys, "authenticate", count)
    keys = tmp_path / "keys"
    keys.write_text("alice:a\nbob:b\n")
    with (
        loop.running(cluster, api_keys_file=keys) as gateway,
        grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel,
    ):
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        request = GenerateRequest(text="x")
        calls = [stub.Generate(request, metadata=[("authorization", f"Bearer {key}")], timeout=20) for key in "ab"]
        assert all(list(call) for call in calls)

    assert sorted(found) == ["alice", "bob"]


def test_a_service_tells_nothing_of_itself_where_reflection_is_off(loop: Loop, cluster: FakeCluster) -> None:
    """Tools then need the protos."""
    with loop.running(cluster, grpc_reflection=False) as gateway:
        for version in ("v1", "v1alpha"):
            assert (
                _status_of_head(gateway, {}, f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
                == "12"
            )


def test_a_message_above_the_limit_is_refused(gateway: RunningGateway) -> None:
    """Of eight megabytes, as REST's bodies have."""

    async def run() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
            request = GenerateRequest(text="x" * (8 << 20))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await GenerationServiceStub(channel).Generate(request, timeout=20).read()  # type: ignore[no-untyped-call]
            assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(run())


def _status_of_head(gateway: RunningGateway, metadata: dict[str, str], path: str = METHOD) -> str:
    """Return the status of a call of which only the headers are sent."""
    block = fixed_block(request_headers(path, "x", "http", metadata, None))
    head = pack_header(len(block), FrameType.HEADERS, _END_HEADERS, 1) + block
    with socket.create_connection(("127.0.0.1", gateway.grpc_port), timeout=20) as connection:
        connection.sendall(PREFACE + settings_frame({}) + head)
        stream, decoder = connection.makefile("rb"), HeaderDecoder(1 << 16)
        while True:
            frame = unpack_header(stream.read(9))
            payload = stream.read(frame.num_bytes)
            if frame.frame_type == FrameType.HEADERS and "grpc-status" in (headers := decoder.decode(payload)):
                return headers["grpc-status"]
