"""Trace context over a real channel, for every shape of call, and calls that behave as without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import grpc
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton.rpc.trace_interceptors import TraceServerInterceptor

TIMEOUT_SECONDS = 60.0
SERVICE = "baton.internal.v1.TestService"


class Recorder:
    """A service of raw bytes whose handlers note the trace that they run in."""

    def __init__(self) -> None:
        self.trace_ids: list[int] = []
        self.cancelled = asyncio.Event()

    def note(self) -> None:
        """Note the trace id that is current."""
        self.trace_ids.append(trace.get_current_span().get_span_context().trace_id)

    async def unary(self, request: bytes, context: object) -> bytes:
        """Echo; fail with the status that is named."""
        self.note()
        code = getattr(grpc.StatusCode, request.decode(), grpc.StatusCode.OK)
        if code is not grpc.StatusCode.OK:
            await context.abort(code, "as asked")  # type: ignore[attr-defined]
        return request

    async def stream(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        """Yield three answers; then, on b"hang", wait for the end of the call."""
        for index in range(3):
            self.note()
            yield b"%d" % index
        if request == b"hang":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    async def echo(self, requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        """Echo each message."""
        async for request in requests:
            self.note()
            yield request

    async def count(self, requests: AsyncIterator[bytes], context: object) -> bytes:
        """Count the messages."""
        self.note()
        return b"%d" % len([request async for request in requests])

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all four shapes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "Stream": grpc.unary_stream_rpc_method_handler(self.stream),
                "Echo": grpc.stream_stream_rpc_method_handler(self.echo),
                "Count": grpc.stream_unary_rpc_method_handler(self.count),
            },
        )


class NotifyingExporter(InMemorySpanExporter):
    """Keeps spans and says when one of the server has ended; called in the loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.server_span_ended = asyncio.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep spans."""
        result = super().export(spans)
        if any(span.kind is trace.SpanKind.SERVER for span in spans):
            self.server_span_ended.set()
        return result


class Bench:
    """A traced server and a traced channel to it."""

    def __init__(self, recorder: Recorder, channel: grpc.aio.Channel, provider: TracerProvider) -> None:
        self.recorder = recorder
        self.channel = channel
        self.tracer = provider.get_tracer("test")
        self.exporter = NotifyingExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def server_spans(self) -> list[ReadableSpan]:
        """Return the finished spans of the server."""
        return [span for span in self.exporter.get_finished_spans() if span.kind is trace.SpanKind.SERVER]


@asynccontextmanager
async def _bench() -> AsyncIterator[Bench]:
    provider = TracerProvider()
    recorder = Recorder()
    server = grpc.aio.server(interceptors=(TraceServerInterceptor(provider.get_tracer("test")),))
    server.add_generic_rpc_handlers((recorder.handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    async with channel:
        yield Bench(recorder, channel, provider)
    await server.stop(0)


def _run(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS), _bench() as bench:
            await test(bench)

    asyncio.run(run())


def _metadata() -> Sequence[tuple[str, str]]:
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return tuple(carrier.items())


async def _call_unary(bench: Bench) -> None:
    assert await bench.channel.unary_unary(f"/{SERVICE}/Unary")(b"x", metadata=_metadata()) == b"x"


async def _call_stream(bench: Bench) -> None:
    answers = [answer async for answer in bench.channel.unary_stream(f"/{SERVICE}/Stream")(b"x", metadata=_metadata())]
    assert answers == [b"0", b"1", b"2"]


async def _iterate_stream(bench: Bench) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    assert [
        answer async for answer in bench.channel.stream_stream(f"/{SERVICE}/Echo")(requests(), metadata=_metadata())
    ] == [b"a", b"b"]


async def _call_stream_unary(bench: Bench) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    assert await bench.channel.stream_unary(f"/{SERVICE}/Count")(requests(), metadata=_metadata()) == b"2"


@pytest.mark.parametrize("call", [_call_unary, _call_stream, _iterate_stream, _call_stream_unary])
def test_the_handler_runs_in_the_trace_of_the_caller(call: Callable[[Bench], Awaitable[None]]) -> None:
    """Every shape and style of call reaches the same answers, inside one trace, as a child of the caller's span."""

    async def test(bench: Bench) -> None:
        with bench.tracer.start_as_current_span("caller") as caller:
            await call(bench)

        expected = caller.get_span_context()
        assert set(bench.recorder.trace_ids) == {expected.trace_id}
        (span,) = bench.server_spans()
        assert span.name.startswith(f"{SERVICE}/")
        assert span.parent is not None
        assert span.parent.span_id == expected.span_id

    _run(test)


def test_a_call_outside_any_trace_begins_one() -> None:
    """Without a caller's span the server span is a root."""

    async def test(bench: Bench) -> None:
        await _call_unary(bench)

        (span,) = bench.server_spans()
        assert span.parent is None

    _run(test)


def test_cancelling_a_stream_reaches_the_handler_and_ends_its_span() -> None:
    """A traced call can be abandoned in the middle like any other."""

    async def test(bench: Bench) -> None:
        call = bench.channel.unary_stream(f"/{SERVICE}/Stream")(b"hang")
        for _ in range(3):
            await call.read()

        call.cancel()

        await bench.recorder.cancelled.wait()
        assert await call.code() is grpc.StatusCode.CANCELLED
        await bench.exporter.server_span_ended.wait()
        (span,) = bench.server_spans()
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == "CANCELLED"

    _run(test)


def test_cancelling_the_reader_reaches_the_handler() -> None:
    """A cancelled task that waits for a message cancels the call."""

    async def test(bench: Bench) -> None:
        call = bench.channel.unary_stream(f"/{SERVICE}/Stream")(b"hang")
        waits = asyncio.Event()

        async def read_all() -> None:
            async for answer in call:
                if answer == b"2":
                    waits.set()  # not sooner: gRPC leaves a call open whose reader ends as the request is sent

        reader = asyncio.ensure_future(read_all())
        await waits.wait()
        reader.cancel()

        await bench.recorder.cancelled.wait()

    _run(test)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.OK, trace.StatusCode.UNSET),
        (grpc.StatusCode.NOT_FOUND, trace.StatusCode.UNSET),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, trace.StatusCode.UNSET),
        (grpc.StatusCode.UNAVAILABLE, trace.StatusCode.ERROR),
    ],
    ids=lambda value: value.name,
)
def test_the_span_says_how_the_call_ended(code: grpc.StatusCode, status: trace.StatusCode) -> None:
    """What the client did wrong is no error of the server; the client sees what it sees without tracing."""

    async def test(bench: Bench) -> None:
        call = bench.channel.unary_unary(f"/{SERVICE}/Unary")(code.name.encode())

        assert await call.code() is code
        await bench.exporter.server_span_ended.wait()  # the status leaves before the handler does
        (span,) = bench.server_spans()
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == code.name
        assert span.attributes["rpc.grpc.status_code"] == code.value[0]
        assert span.attributes.get("error.type") == (code.name if status is trace.StatusCode.ERROR else None)
        assert span.status.status_code is status
        assert span.status.description == ("as asked" if status is trace.StatusCode.ERROR else None)
        assert span.events == ()

    _run(test)
