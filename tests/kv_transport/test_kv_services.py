"""Where the fast path listens."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from baton.errors import ConfigurationError, InvalidFieldError, UnavailableError
from baton.grpc_sockets.frames import PREFACE, settings_frame
from baton.grpc_sockets.headers import Code, Status
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1.kv_pb2 import KvSummary
from baton.internal.v1.prefill_service_pb2 import PrefillRequest, PrefillResponse
from baton.kv.stream import StagingPool
from baton.kv_transport.fast_channel import FastChannel, FastStream, _cancel_made, limits_for
from baton.kv_transport.kv_services import FastServer, ReceivedRequest
from baton.kv_transport.link_probe import measure_link
from baton.security import tls
from baton.security.tls import TlsIdentity, secured_by
from security.identities import identity

OUTSIDE = "127.0.0.2"
"""Stands for the machine's address in its network."""


def refuse(request: ReceivedRequest, call: ServerCall) -> None:
    """Refuse every prefill."""
    raise UnavailableError("no memory")


async def refusal_of(address: str) -> str:
    """Return what a node answers that asks there for KV."""
    channel = FastChannel(address, StagingPool(1 << 20))
    try:
        await channel.prefill(PrefillRequest(request_id="r"))
    except Exception as error:
        return str(error)
    finally:
        channel.close()
    return ""


def is_served(who: TlsIdentity, host: str, port: int) -> bool:
    """Return whether a node of the deployment is understood there, by TLS."""
    try:
        with (
            socket.create_connection((host, port), timeout=20) as plain,
            who.client_context().wrap_socket(plain, server_hostname=who.server_name) as secured,
        ):
            secured.sendall(PREFACE + settings_frame({}))
            return secured.recv(1) != b""  # its settings: who wants another certificate sends none
    except OSError:
        return False


def test_an_address_that_is_taken_is_named() -> None:
    """The node does not start as if it had a fast path."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"fast_port: cannot listen on 127.0.0.1:{port}"):
            FastServer("127.0.0.1", port, refuse).start()


def test_a_link_is_measured_by_the_way_of_its_kv() -> None:
    """With messages larger than what may wait; then nothing is held, and the next call finds the path as it was."""

    async def run() -> None:
        server = FastServer("127.0.0.1", 0, refuse)
        address = f"127.0.0.1:{server.start()}"
        channel = FastChannel(address, StagingPool(1 << 20), limits_for(1 << 16))
        try:
            link = await measure_link(channel, "p", 3_000_000)
            assert [message async for message in channel.probe(0, 20)] == []
            assert len([message async for message in channel.probe(3_000_000, 20)]) == 3
            with pytest.raises(InvalidFieldError, match="byte_count: expected 0 to"):
                await measure_link(channel, "p", 1 << 30)
            with pytest.raises(TimeoutError):
                await anext(aiter(channel.probe(3_000_000, 0.0)))
            assert "no memory" in await refusal_of(address)
        finally:
            channel.close()
            await server.drain(20)
        assert link.from_node_id == "p"
        assert link.bytes_per_second > 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_machine_that_opens_serves_its_network_on_the_same_port_by_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its file has the address, and not before; on loopback it goes on as it was, and a drain ends both."""
    monkeypatch.setattr(tls, "_LOOK_SECONDS", 0.01)
    own = replace(identity(tmp_path / "own", trustme.CA()), lan_file=tmp_path / "address")

    async def run() -> None:
        with secured_by(own):
            server = FastServer("127.0.0.1", 0, refuse)
            port = server.start()
            assert server.advertised_address == f"127.0.0.1:{port}"
            opening = asyncio.create_task(server.open_outside())
            assert "no memory" in await refusal_of(f"127.0.0.1:{port}")
            assert not await asyncio.to_thread(is_served, own, OUTSIDE, port)
            (tmp_path / "address").write_text(OUTSIDE)
            await asyncio.wait_for(opening, 20)
            assert await asyncio.to_thread(is_served, own, OUTSIDE, port)
            assert "no memory" in await refusal_of(f"127.0.0.1:{port}")
            await server.drain(0.0)
            assert not await asyncio.to_thread(is_served, own, OUTSIDE, port)
            assert "no memory" not in await refusal_of(f"127.0.0.1:{port}")

    asyncio.run(run())


def test_a_machine_that_cannot_open_serves_itself(tmp_path: Path) -> None:
    """An address that is not its own is told, and costs nothing else."""
    (tmp_path / "address").write_text("192.0.2.1")
    own = replace(identity(tmp_path / "own", trustme.CA()), lan_file=tmp_path / "address")

    async def run() -> None:
        with secured_by(own):
            server = FastServer("127.0.0.1", 0, refuse)
            port = server.start()
            await server.open_outside()
            assert "no memory" in await refusal_of(f"127.0.0.1:{port}")
            await server.drain(0.0)
        outsider = FastServer("127.0.0.1", 0, refuse)
        await outsider.open_outside()  # without TLS there is nothing to open

    asyncio.run(run())


def test_a_channel_that_is_closed_says_so() -> None:
    """By the error that has the gRPC library carry the stream."""

    async def run() -> None:
        channel = FastChannel("127.0.0.1:1", StagingPool(1 << 20))
        channel.close()
        with pytest.raises(UnavailableError, match="closed"):
            await channel.prefill(PrefillRequest(request_id="r"))

    asyncio.run(run())


def test_a_call_that_failed_after_its_asker_had_gone_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    """One that was made is cancelled then: its node would go on computing."""
    cancelled: list[str] = []

    class Made:
        def cancel(self) -> None:
            cancelled.append("made")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        failed, given_up, made = (loop.create_future() for _ in range(3))
        for making in (failed, given_up, made):
            making.add_done_callback(_cancel_made)
        failed.set_exception(UnavailableError("no route"))
        given_up.cancel()
        made.set_result(Made())
        await asyncio.sleep(0)

    asyncio.run(run())

    assert cancelled == ["made"]
    assert not caplog.messages


def test_what_comes_after_the_end_of_a_stream_is_not_kept() -> None:
    """Its messages are in memory that others need; those that waited are gone, too."""

    async def run() -> None:
        stream = FastStream(StagingPool(1 << 20), lambda: False)
        summary = PrefillResponse(summary=KvSummary(frame_count=1)).SerializeToString()
        for is_over in (False, True):
            stream.message(memoryview(summary))
            await asyncio.sleep(0)
            assert len(stream._items) == (not is_over)
            stream.close()
            assert not stream._items

    asyncio.run(run())


def test_other_nodes_are_told_the_address_by_which_they_reach_it() -> None:
    """Which need not be the one on which it listens."""
    server = FastServer("127.0.0.1", 0, refuse, advertised=lambda port: f"mac.local:{port}")
    port = server.start()
    asyncio.run(server.drain(0))

    assert server.advertised_address == f"mac.local:{port}"


def test_a_message_that_came_before_a_refusal_counts() -> None:
    """The path is there; what breaks is the stream."""

    async def run() -> object:
        stream = FastStream(StagingPool(1 << 20), lambda: False)
        stream.message(memoryview(PrefillResponse(summary=KvSummary(frame_count=1)).SerializeToString()))
        stream.ended(Status(Code.UNIMPLEMENTED, "gone"))
        return await stream.first()

    answer = asyncio.run(run())
    assert isinstance(answer, PrefillResponse)
    assert answer.summary.frame_count == 1
