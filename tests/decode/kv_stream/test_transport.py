"""Which implementation carries a KV stream: what is used, what takes over, and what is said of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.errors import UnavailableError
from baton.grpc_sockets.server import GrpcSocketServer
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceStub
from baton.kv.stream import StagingPool
from baton.kv_transport.fast_channel import FastChannel
from baton.rpc.channel import open_channel
from baton.security.tls import TlsIdentity, secured_by
from baton.telemetry import names
from baton.v1.generation_pb2 import KV_TRANSPORT_FAST, KV_TRANSPORT_GRPC, KV_TRANSPORT_SHARED, KV_TRANSPORT_UNSPECIFIED
from decode.grants import grant_prefill
from decode.kv_stream.faulty_link import FaultyLink
from decode.pair import DECODE_ID, PREFILL_ID, Pair, generate, request_of, with_pair
from engine.rig import expected_tokens, prompt_of
from prefill.test_servicer import request_of as prefill_request_of
from system.plan import free_ports
from tcp_server import listening

PROMPT = prompt_of(41)
EXPECTED = expected_tokens(PROMPT, 8)


@pytest.mark.parametrize(
    ("choice", "transport"),
    [
        ("auto", KV_TRANSPORT_SHARED),
        ("shared", KV_TRANSPORT_SHARED),
        ("fast", KV_TRANSPORT_FAST),
        ("grpc", KV_TRANSPORT_GRPC),
    ],
)
def test_the_summary_says_what_carried_the_stream(choice: TransportChoice, transport: int) -> None:
    """And nothing of a reason where nothing had to take over."""

    async def client(pair: Pair) -> None:
        summary = (await generate(pair, request_of(PROMPT))).summary

        assert summary.kv_transport == transport
        assert (summary.kv_transport_reason, summary.fallback_reason) == ("", "")

    with_pair(client, transport=choice)


def test_a_local_prefill_has_no_transport() -> None:
    """Nothing was carried."""

    async def client(pair: Pair) -> None:
        summary = (await generate(pair, request_of(PROMPT, prefill_node_id=""))).summary

        assert summary.kv_transport == KV_TRANSPORT_UNSPECIFIED

    with_pair(client, transport="auto")


def closed_port() -> int:
    """Return a port on which nobody listens."""
    return free_ports(["closed"])["closed"]


@asynccontextmanager
async def other_protocol() -> AsyncIterator[int]:
    """Serve HTTP/1.1."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listening(answer) as port:
        yield port


@asynccontextmanager
async def other_service() -> AsyncIterator[int]:
    """Serve another method."""
    server = GrpcSocketServer("127.0.0.1", 0, {"/other.Service/Method": lambda call: None})
    yield server.start()
    await asyncio.to_thread(server.drain, 0)


@asynccontextmanager
async def nobody() -> AsyncIterator[int]:
    """Serve nothing."""
    yield closed_port()


UNUSABLE = {
    "nobody listens": (nobody, "CONNECT_FAILED"),
    "another protocol": (other_protocol, "CONNECT_FAILED"),
    "another service": (other_service, "REFUSED"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_the_grpc_library_takes_over_where_the_fast_path_does_not_work(case: str) -> None:
    """The prompt is still computed remotely; the reason is in the summary, and counted."""
    serve, reason = UNUSABLE[case]

    async def client(pair: Pair) -> None:
        async with serve() as port:
            await pair.reconnect(2, f"127.0.0.1:{port}")
            answer = await generate(pair, request_of(PROMPT))

            assert answer.token_ids == EXPECTED
            assert answer.summary.prefill_node_id == PREFILL_ID
            assert answer.summary.kv_transport == KV_TRANSPORT_GRPC
            assert answer.summary.kv_transport_reason == reason
            assert pair.metrics.counted[names.FAST_PATH_FALLBACKS] == [(1, reason)]

    with_pair(client, transport="auto", shared_memory_bytes=0)


def test_a_node_that_offers_no_fast_path_is_called_by_the_grpc_library() -> None:
    """An older node, or one that was told so."""

    async def client(pair: Pair) -> None:
        await pair.reconnect(2, "")
        summary = (await generate(pair, request_of(PROMPT))).summary

        assert (summary.kv_transport, summary.kv_transport_reason) == (KV_TRANSPORT_GRPC, "NOT_OFFERED")

    with_pair(client, transport="auto", shared_memory_bytes=0)


@pytest.mark.parametrize("case", UNUSABLE)
def test_where_only_the_fast_path_is_allowed_the_prompt_is_computed_here(case: str) -> None:
    """With the reason as that of the fallback."""
    serve, reason = UNUSABLE[case]

    async def client(pair: Pair) -> None:
        async with serve() as port:
            await pair.reconnect(2, f"127.0.0.1:{port}")
            answer = await generate(pair, request_of(PROMPT))

            assert answer.token_ids == EXPECTED
            assert answer.summary.fallback_reason == reason

    with_pair(client, transport="fast")


def test_a_path_that_failed_is_left_alone_for_a_while() -> None:
    """Requests do not wait for one failing connection after the other."""

    async def client(pair: Pair) -> None:
        port = closed_port()
        await pair.reconnect(2, f"127.0.0.1:{port}")
        await generate(pair, request_of(PROMPT, request_id="first"))
        async with FaultyLink(pair.fast_port, port=port) as link:
            for index in range(2):
                answer = await generate(pair, request_of(PROMPT, request_id=f"r{index}"))
                assert answer.summary.kv_transport_reason == "CONNECT_FAILED"
            assert link.num_connections == 0

        assert pair.metrics.counted[names.FAST_PATH_FALLBACKS] == [(1, "CONNECT_FAILED")] * 3

    with_pair(client, transport="auto", shared_memory_bytes=0)


def test_the_fast_path_receives_from_the_grpc_library() -> None:
    """The two are one protocol: the client here, grpcio's server there."""

    async def client(pair: Pair) -> None:
        await pair.reconnect(2, f"127.0.0.1:{pair.prefill_server.port}")
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_transport == KV_TRANSPORT_FAST
        assert answer.summary.fallback_reason == ""

    with_pair(client, transport="fast")


def test_the_grpc_library_receives_from_the_fast_path() -> None:
    """The other way round; the stream is the same, message for message."""

    async def client(pair: Pair) -> None:
        async with open_channel(f"127.0.0.1:{pair.fast_port}") as channel:
            stub = PrefillServiceStub(channel)
            request = grant_prefill(prefill_request_of(chunk_token_count=11), PREFILL_ID, DECODE_ID)
            fast = [message async for message in stub.Prefill(request)]
            request.request_id, request.bypass_prefix_cache = "again", True
            request.ClearField("transfer")
            plain = [message async for message in pair.prefill_stub.Prefill(request)]

        assert [message.WhichOneof("element") for message in fast].count("summary") == 1
        frames = {message.frame.sequence_number: message.frame for message in fast if message.HasField("frame")}
        for message in plain:
            if message.HasField("frame"):
                twin = frames.pop(message.frame.sequence_number)
                assert (twin.keys, twin.values, twin.crc32c) == (
                    message.frame.keys,
                    message.frame.values,
                    message.frame.crc32c,
                )
        assert frames == {}

    with_pair(client)


def test_many_streams_share_one_connection() -> None:
    """It is made once, and used again when the streams before it have ended."""

    async def client(pair: Pair) -> None:
        async with FaultyLink(pair.fast_port) as link:
            await pair.reconnect(2, f"127.0.0.1:{link.port}")
            for turn in range(2):
                prompts = [prompt_of(5 + 3 * index, seed=index) for index in range(6)]
                answers = await asyncio.gather(
                    *(
                        generate(pair, request_of(prompt, request_id=f"{turn}-{index}", cache_salt=str(turn)))
                        for index, prompt in enumerate(prompts)
                    )
                )
                assert [answer.token_ids for answer in answers] == [expected_tokens(prompt, 8) for prompt in prompts]

            assert link.num_connections == 1

    with_pair(client, transport="fast")


def secured(folder: Path, authority: trustme.CA) -> TlsIdentity:
    """Write the files of a process of a deployment."""
    folder.mkdir()
    issued = authority.issue_cert("baton")
    (folder / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "ca.crt").write_bytes(authority.cert_pem.bytes())
    return TlsIdentity(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", "baton")


def test_the_fast_path_has_the_tls_of_the_deployment(tmp_path: Path) -> None:
    """Whoever holds its certificates gets KV."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.kv_transport == KV_TRANSPORT_FAST
        assert answer.summary.fallback_reason == ""

    with secured_by(secured(tmp_path / "node", trustme.CA())):
        with_pair(client, transport="fast")


@pytest.mark.parametrize("stranger", ["without TLS", "of another authority"])
def test_strangers_get_no_kv_by_the_fast_path(tmp_path: Path, stranger: str) -> None:
    """Neither without a certificate nor with one of another authority."""

    async def client(pair: Pair) -> None:
        other = secured(tmp_path / "other", trustme.CA()) if stranger == "of another authority" else None
        with secured_by(other):
            channel = FastChannel(f"127.0.0.1:{pair.fast_port}", StagingPool())
        with pytest.raises(UnavailableError):
            await channel.prefill(prefill_request_of())
        channel.close()

    with secured_by(secured(tmp_path / "node", trustme.CA())):
        with_pair(client, transport="fast")
