"""Channels on the event loop, against servers of grpcio and peers made of frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from baton.errors import ConfigurationError, InvalidFieldError
from baton.grpc_sockets import client
from baton.grpc_sockets.frames import ACK, END_HEADERS, PREFACE, FrameType, Setting, pack_header, settings_frame
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.loop_connection import LoopConnection
from baton.rpc import loop_channel
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.server import GrpcServer
from baton.rpc.status import error_from_rpc
from baton.security.tls import secured_by
from system.plan import free_ports
from tcp_proxy import TcpProxy
from tcp_server import listening
from tests.security.test_tls import identity

SECONDS = 60.0
LARGE = bytes(range(256)) * (3 << 12)
"""3 MiB: larger than every window."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class Handlers(grpc.GenericRpcHandler):
    """Serves bytes; see the methods."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.hangs = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method."""
        method = str(handler_call_details.method).rpartition("/")[2]
        if method == "Stream":
            return grpc.stream_stream_rpc_method_handler(self.stream)
        if method == "Count":
            return grpc.unary_stream_rpc_method_handler(self.count)
        return grpc.unary_unary_rpc_method_handler(getattr(self, method.lower()))

    async def echo(self, request: bytes, _context: Context) -> bytes:
        """Return the request."""
        return request

    async def refuse(self, request: bytes, _context: Context) -> bytes:
        """Refuse a field."""
        raise InvalidFieldError(request.decode(), "expected another")

    async def hang(self, _request: bytes, _context: Context) -> bytes:
        """Wait to be cancelled."""
        self.hangs.set()
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return b""

    async def stream(self, requests: AsyncIterator[bytes], _context: Context) -> AsyncIterator[bytes]:
        """Return every request."""
        async for request in requests:
            yield request

    async def count(self, request: bytes, _context: Context) -> AsyncIterator[bytes]:
        """Count."""
        for number in range(int(request)):
            yield str(number).encode()


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give servers time to greet, however busy the machine."""
    monkeypatch.setattr(loop_channel, "_TIMING", replace(loop_channel._TIMING, connect_seconds=SECONDS))


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[tuple[int, Handlers]]:
    """Serve; yield the port and what serves."""
    server, handlers = GrpcServer(f"127.0.0.1:{port}"), Handlers()
    server.add("test.Service", lambda grpc_server: grpc_server.add_generic_rpc_handlers((handlers,)))
    port = await server.start()
    try:
        yield port, handlers
    finally:
        await server.drain(0)


def same(data: bytes) -> bytes:
    """Stand in for a serializer."""
    return data


def unary(channel: LoopChannel, method: str) -> Callable[..., Awaitable[bytes]]:
    """Return what calls a method with bytes."""
    return channel.unary_unary(f"/baton.internal.v1.Test/{method}", same, same)


def run(test: Callable[[LoopChannel, Handlers], Awaitable[None]]) -> None:
    """Run a test with a channel to a server."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS), serving() as (port, handlers), LoopChannel(f"127.0.0.1:{port}") as channel:
            await test(channel, handlers)

    asyncio.run(main())


@pytest.mark.parametrize("size", [0, 1, 16_384, len(LARGE)])
def test_a_response_comes_back_as_it_was(size: int) -> None:
    """Whether or not windows let it through at once."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        for _ in range(3):
            assert await unary(channel, "Echo")(LARGE[:size], timeout=SECONDS) == LARGE[:size]

    run(test)


def test_calls_at_once_share_a_connection_and_no_answer() -> None:
    """Each gets its own, large ones among them."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        echo = unary(channel, "Echo")
        requests = [LARGE[: 1 << 20] if index % 50 == 0 else str(index).encode() for index in range(200)]
        answers = await asyncio.gather(*(echo(request) for request in requests))

        assert answers == requests
        assert await channel.connected() is await channel.connected()

    run(test)


def test_an_error_of_the_server_arrives_with_its_details() -> None:
    """As over a channel of grpc.aio: the domain's own error comes of it."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Refuse")(b"colour")
        error = error_from_rpc(caught.value)

        assert isinstance(error, InvalidFieldError)
        assert error.field == "colour"

    run(test)


def test_a_call_that_takes_too_long_ends_on_both_sides() -> None:
    """DEADLINE_EXCEEDED here, a cancellation there."""

    async def test(channel: LoopChannel, handlers: Handlers) -> None:
        for seconds in (0.2, 1.0, 5.0):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "Hang")(b"", timeout=seconds)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if handlers.hangs.is_set():  # else the server has not got so far
                break
        await handlers.cancelled.wait()

    run(test)


def test_cancelling_the_caller_cancels_the_call() -> None:
    """The server hears of it, and the connection serves the next call."""

    async def test(channel: LoopChannel, handlers: Handlers) -> None:
        connection = await channel.connected()
        task = asyncio.ensure_future(unary(channel, "Hang")(b""))
        await handlers.hangs.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await handlers.cancelled.wait()

        assert await unary(channel, "Echo")(b"next") == b"next"
        assert await channel.connected() is connection

    run(test)


def test_a_stream_carries_messages_of_any_size_both_ways() -> None:
    """In order, while more is written than the windows hold."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        call = channel.stream_stream("/baton.internal.v1.Test/Stream", same, same)()
        sent = [LARGE[: size * 4099] for size in range(100)]

        async def write() -> None:
            for message in sent:
                await call.write(message)

        writing = asyncio.ensure_future(write())
        received = [await call.read() for _ in sent]
        await writing
        call.cancel()

        assert received == sent
        with pytest.raises(asyncio.CancelledError):
            await call.read()

    run(test)


def test_responses_of_a_stream_end_with_the_call() -> None:
    """Iterated, or read until EOF."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        count = channel.unary_stream("/baton.internal.v1.Test/Count", same, same)
        call = count(b"1")

        assert [response async for response in count(b"100")] == [str(number).encode() for number in range(100)]
        assert await call.read() == b"0"
        assert await call.read() is grpc.aio.EOF

    run(test)


def test_a_method_that_is_not_known_is_unimplemented() -> None:
    """The code by which a gateway notices a node that does not know a call."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/Nothing", same, same)(b"")

        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    async def main() -> None:
        server = GrpcServer("127.0.0.1:0")
        async with asyncio.timeout(SECONDS), LoopChannel(f"127.0.0.1:{await server.start()}") as channel:
            await test(channel, Handlers())
        await server.drain(0)

    asyncio.run(main())


def test_a_server_that_comes_back_is_called_again() -> None:
    """Meanwhile calls fail as UNAVAILABLE, and so does one that ran."""

    async def main() -> None:
        async with asyncio.timeout(SECONDS):
            own = free_ports(["server"])["server"]
            async with serving(own) as (port, _), LoopChannel(f"127.0.0.1:{port}") as channel:
                hanging = asyncio.ensure_future(unary(channel, "Hang")(b""))
                assert await unary(channel, "Echo")(b"one") == b"one"
                async with asyncio.TaskGroup() as tasks:  # leaves the server while the call runs
                    tasks.create_task(asyncio.sleep(0))
            channel = LoopChannel(f"127.0.0.1:{port}")
            assert isinstance((await asyncio.gather(hanging, return_exceptions=True))[0], BaseException)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(channel, "Echo")(b"two")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            async with serving(port):
                assert await unary(channel, "Echo")(b"three") == b"three"
                connection = await channel.connected()
            while connection.is_open:  # noqa: ASYNC110 - its end may come after that of the server
                await asyncio.sleep(0)
            async with serving(port):
                assert await unary(channel, "Echo")(b"four") == b"four"
            await channel.close()

    asyncio.run(main())


def test_closing_the_channel_ends_its_calls_like_cancelled_ones() -> None:
    """As grpc.aio does; later calls too."""

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        hanging = asyncio.ensure_future(unary(channel, "Hang")(b""))
        await unary(channel, "Echo")(b"")
        await channel.close()
        await asyncio.gather(hanging, return_exceptions=True)

        assert hanging.cancelled()
        with pytest.raises(asyncio.CancelledError):
            await unary(channel, "Echo")(b"")

    run(test)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_channel_of_a_deployment_uses_its_certificates(tmp_path: Path, *, is_trusted: bool) -> None:
    """A server of another authority's is not believed."""
    authority = trustme.CA()
    server_identity = identity(tmp_path / "server", authority)
    client_identity = identity(tmp_path / "client", authority if is_trusted else trustme.CA())

    async def main() -> None:
        with secured_by(server_identity):
            serving_it = serving()
            port, _ = await serving_it.__aenter__()
        with secured_by(client_identity):
            channel = LoopChannel(f"127.0.0.1:{port}")
        try:
            if is_trusted:
                assert await unary(channel, "Echo")(LARGE) == LARGE
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await unary(channel, "Echo")(b"")
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            await channel.close()
            await serving_it.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(main(), SECONDS))


@pytest.mark.parametrize("address", ["", "localhost", ":80", "host:", "host:http"])
def test_an_address_without_host_and_port_is_refused(address: str) -> None:
    """By its text."""
    with pytest.raises(ConfigurationError, match="expected host:port"):
        LoopChannel(address)


GREETING = settings_frame({})
BAD_FRAMES = {
    "a stream that was not opened": pack_header(0, FrameType.DATA, 0, 99),
    "a frame that is too large": pack_header(16_385, FrameType.DATA, 0, 1),
    "a header block that is none": pack_header(1, FrameType.HEADERS, END_HEADERS, 1) + b"\xff",
    "a window that overflows": pack_header(4, FrameType.WINDOW_UPDATE, 0, 0) + b"\x7f\xff\xff\xff",
    "a promise": pack_header(4, FrameType.PUSH_PROMISE, END_HEADERS, 1) + bytes(4),
    "an acknowledgement with settings": pack_header(6, FrameType.SETTINGS, ACK, 0) + bytes(6),
    "frames smaller than every peer takes": settings_frame({Setting.MAX_FRAME_SIZE: 100}),
}


@pytest.mark.parametrize("frames", BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_peer_that_breaks_the_rules_ends_the_call(frames: bytes) -> None:
    """As UNAVAILABLE, and nothing is raised elsewhere."""
    error = asyncio.run(asyncio.wait_for(called_at_peer(frames), SECONDS))

    assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_a_peer_that_falls_silent_is_given_up() -> None:
    """After a question for a sign of life: a stopped process keeps its connections."""
    error = asyncio.run(asyncio.wait_for(called_at_peer(b""), SECONDS))

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "silent" in str(error.details())


def test_short_calls_at_a_dead_peer_find_out_that_it_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that end long before a sign of life is due are followed by others: they get another connection."""
    monkeypatch.setattr(loop_channel, "_TIMING", Timing(connect_seconds=SECONDS, idle_seconds=0.1, ping_seconds=0.1))
    num_connections = 0

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        writer.write(GREETING)
        while await reader.read(1 << 16):
            pass

    async def main() -> None:
        async with listening(listen) as port, LoopChannel(f"127.0.0.1:{port}") as channel:
            while num_connections < 2:
                with pytest.raises(grpc.aio.AioRpcError):
                    await unary(channel, "Echo")(b"", timeout=0.01)
                await asyncio.sleep(0.06)  # no call runs when the connection is looked at

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_a_connection_whose_stream_numbers_are_used_up_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 2 to the 30 calls, which a gateway makes in days; here after 3."""
    monkeypatch.setattr(client, "LARGEST_STREAM_ID", 5)

    async def test(channel: LoopChannel, _handlers: Handlers) -> None:
        connections = list[LoopConnection]()
        for number in range(7):
            connections.append(await channel.connected())
            assert await unary(channel, "Echo")(b"%d" % number) == b"%d" % number
        assert [connections.index(each) for each in connections] == [0, 0, 0, 3, 3, 3, 6]

    run(test)


def test_closing_the_channel_ends_calls_on_connections_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was full was followed by another; both end."""
    monkeypatch.setattr(loop_channel, "_LIMITS", Limits(num_streams=1))

    async def test(channel: LoopChannel, handlers: Handlers) -> None:
        hanging = asyncio.ensure_future(unary(channel, "Hang")(b""))
        await handlers.hangs.wait()
        await unary(channel, "Echo")(b"")
        await channel.close()
        await asyncio.gather(hanging, return_exceptions=True)

        assert hanging.cancelled()

    run(test)


async def called_at_peer(frames: bytes) -> grpc.aio.AioRpcError:
    """Return how a call fails at a peer that greets, and answers with frames."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(PREFACE))
        writer.write(GREETING)
        await reader.readuntil(b"Echo")
        writer.write(frames)
        while await reader.read(1 << 16):
            pass

    async with listening(answer) as port, LoopChannel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unary(channel, "Echo")(b"")
        return caught.value


class _Balancer(TcpProxy):
    """Stands for an address behind which the process of the first `num_dead` connections is dead."""

    def __init__(self, upstream: int, num_dead: int) -> None:
        super().__init__(0)
        self._upstream = upstream
        self._num_dead = num_dead
        self.num_connections = 0
        self.silence = asyncio.Event()
        """Set: nothing that lives passes any more; connections that come later are the next process's."""

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass both ways on, or leave the client without an answer."""
        self.num_connections += 1
        if self.num_connections <= self._num_dead:
            await asyncio.sleep(SECONDS)
        upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._upstream)
        silence = self.silence
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_pass_on(reader, upstream, silence))
                tasks.create_task(_pass_on(upstream_reader, writer, silence))
        finally:
            upstream.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence: asyncio.Event) -> None:
    while data := await reader.read(1 << 16):
        if not silence.is_set():
            writer.write(data)
            await writer.drain()


def test_another_process_behind_the_address_is_found_while_the_first_is_silent() -> None:
    """A Service names dead pods for as long as its control plane is away: connections to them are never made."""

    async def main() -> None:
        async with (
            asyncio.timeout(SECONDS),
            serving() as (port, _),
            _Balancer(port, num_dead=3) as balancer,
            LoopChannel(f"127.0.0.1:{balancer.port}", is_balanced=True) as channel,
        ):
            assert await unary(channel, "Echo")(b"found") == b"found"
            assert balancer.num_connections >= 4

    asyncio.run(main())


def test_a_balanced_process_that_falls_silent_is_left_within_a_second() -> None:
    """The call that finds out ends, and the next one is another process's."""

    async def main() -> None:
        async with (
            asyncio.timeout(SECONDS),
            serving() as (port, _),
            _Balancer(port, num_dead=0) as balancer,
            LoopChannel(f"127.0.0.1:{balancer.port}", is_balanced=True) as channel,
        ):
            assert await unary(channel, "Echo")(b"first") == b"first"
            balancer.silence.set()
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await unary(channel, "Echo")(b"lost", timeout=SECONDS)
            assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
            balancer.silence = asyncio.Event()
            assert await unary(channel, "Echo")(b"second") == b"second"

    asyncio.run(main())


def test_of_several_addresses_the_next_one_is_asked_when_one_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """First where nobody listens, then at one that greets and says nothing more: each call ends at a live one."""
    monkeypatch.setattr(loop_channel, "_STAGGER_SECONDS", SECONDS)  # however long a busy machine takes to connect
    port = free_ports(["port"])["port"]

    async def main() -> None:
        async with (
            asyncio.timeout(SECONDS),
            serving() as (first, _),
            serving() as (second, _),
            _Balancer(first, num_dead=0) as balancer,
        ):
            addresses = [f"127.0.0.1:{each}" for each in (port, balancer.port, second)]
            async with LoopChannel(", ".join(addresses), is_balanced=True) as channel:
                assert await unary(channel, "Echo")(b"first") == b"first"
                balancer.silence.set()
                with pytest.raises(grpc.aio.AioRpcError, match="silent"):
                    await unary(channel, "Echo")(b"lost")
                assert await unary(channel, "Echo")(b"second") == b"second"
                assert balancer.num_connections == 1

    asyncio.run(main())


def test_a_balanced_address_that_refuses_fails_at_once() -> None:
    """Nothing is tried again where nobody listens: whoever calls decides that."""
    port = free_ports(["port"])["port"]

    async def main() -> None:
        async with LoopChannel(f"127.0.0.1:{port}", is_balanced=True) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="failed to connect"):
                await asyncio.wait_for(unary(channel, "Echo")(b""), SECONDS)

    asyncio.run(main())


def test_an_address_is_remembered_while_its_name_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """One question waits for its answer, however often a connection is tried meanwhile."""
    questions: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        ask = loop.getaddrinfo
        is_away = False

        async def getaddrinfo(host: str, *arguments: Any, **options: Any) -> Any:
            questions.append(host)
            if is_away:
                await asyncio.sleep(SECONDS)
            return await ask(host, *arguments, **options)

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        async with (
            asyncio.timeout(SECONDS),
            serving() as (port, _),
            _Balancer(port, num_dead=0) as balancer,
            LoopChannel(f"localhost:{balancer.port}", is_balanced=True) as channel,
        ):
            assert await unary(channel, "Echo")(b"first") == b"first"
            is_away = True
            for _ in range(3):
                (await channel.connected()).retire()
                assert await unary(channel, "Echo")(b"again") == b"again"

    asyncio.run(main())
    assert questions == ["localhost", "localhost"]
