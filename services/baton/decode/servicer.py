"""baton.internal.v1.DecodeService over a generator.

A gateway keeps one call of `Serve` open for any number of generations, and gets one message per pass of the engine for
all of them: what they say gathers in a `ResponseBatch` while the message before is written.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

import grpc

from baton.decode.generation import DecodeGenerator, Generation
from baton.engine.events import Isolated
from baton.engine.sampling import SampledToken
from baton.errors import BatonError, InvalidFieldError, UnavailableError
from baton.internal.v1 import decode_service_pb2 as messages
from baton.internal.v1 import decode_service_pb2_grpc as service
from baton.node.requests import token_to_proto
from baton.rpc.error_interceptor import Context
from baton.rpc.status import GATEWAY_SILENT, MISSED_BEATS, code_of, error_from_parts
from baton.telemetry.tracing import RequestSpan, current_context, named_address
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)
METHOD = "/baton.internal.v1.DecodeService/Serve"
WRITE_TIMEOUT_SECONDS = 10.0
"""Time for which a gateway may take no message."""
_HEARTBEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.05
MAX_TOKENS = 100_000
"""Tokens of one message: 30 MB at most, with all log-probabilities, of the 64 MiB that a message may have."""
Write = Callable[[messages.ServeResponse], Awaitable[None]]


class DecodeServicer(service.DecodeServiceServicer):
    """Serves generations, alone or many in one call."""

    def __init__(self, generator: DecodeGenerator, address: str = "") -> None:
        """Make it; `address` is host:port where it is served, for traces."""
        self.generator = generator
        self._address = named_address(address)
        self._calls: set[GatewayCall] = set()

    async def Generate(self, request: messages.DecodeServiceGenerateRequest, context: Context) -> None:  # noqa: N802
        """Stream a generation: a call of `Serve` with one stream."""

        async def asked() -> AsyncIterator[messages.ServeRequest]:
            start = messages.StreamStart(stream_id=1, request=request, trace_context=current_context())
            yield messages.ServeRequest(starts=[start])

        async def write(batch: messages.ServeResponse) -> None:
            for element in _elements(batch, self.generator.node.node_id):
                await context.write(element)

        await GatewayCall(self.generator, self._address).run(asked(), write)

    async def Serve(self, request_iterator: AsyncIterator[messages.ServeRequest], context: Context) -> None:  # noqa: N802
        """Stream many generations."""
        await context.send_initial_metadata(())  # else a call could not be ended while its first message is written
        call = GatewayCall(self.generator, self._address)
        self._calls.add(call)
        if self.generator.node.is_draining:
            call.drain(is_leaving=True)
        try:
            await call.run(request_iterator, context.write)
        finally:
            self._calls.discard(call)

    def give_up(self, error: BatonError) -> None:
        """End all streams with an error that has their gateways go on elsewhere."""
        for call in self._calls:
            call.give_up(error)

    def drain(self) -> None:
        """Tell gateways that the node leaves, and let calls end after their last stream."""
        for call in self._calls:
            call.drain(is_leaving=True)

    async def left(self) -> None:
        """Return when gateways have moved their streams."""
        for call in tuple(self._calls):
            await call.over.wait()


def _elements(batch: messages.ServeResponse, node_id: str) -> Iterator[messages.DecodeServiceGenerateResponse]:
    """Yield what a message says of its only stream, in order; raise BatonError if that has failed."""
    one = messages.DecodeServiceGenerateResponse
    if batch.accepted_stream_ids:
        yield one(accepted=messages.Accepted(node_id=node_id))
    yield from (one(prompt=each.chunk) for each in batch.prompts)
    if batch.token_ids:
        begin = batch.token_output_indexes[0]
        yield one(tokens=messages.TokenChunk(output_index=begin, token_ids=batch.token_ids))
    yield from (one(tokens=each.chunk) for each in batch.tokens)
    yield from (one(finished=each.finished) for each in batch.finished)
    for failed in batch.failed:
        raise error_from_parts(failed.code, failed.message, failed.reason, dict(failed.metadata))


class GatewayCall:
    """One gateway's call of `Serve`: its generations, and the messages that wait to be written.

    Invariant: a stream is in `_streams` until its end has been put into a batch, or its cancellation has come. What
    waits is no more than the output of the streams, because each says its own output once.
    """

    def __init__(self, generator: DecodeGenerator, address: str = "") -> None:
        self.address = address
        """host:port where it is served; empty: not known."""
        self._generator = generator
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, _GatewayStream] = {}
        self._last_stream_id = 0
        self._batch: ResponseBatch | None = None
        self._full: deque[ResponseBatch] = deque()
        self._has_news = asyncio.Event()
        self._is_ending = False
        self._silent_seconds = 0.0  # since the gateway said something
        self._beat_seconds = 0.0
        self.over = asyncio.Event()
        """Set when all of its streams have ended."""

    async def run(self, requests: AsyncIterator[messages.ServeRequest], write: Write) -> None:
        """Serve until the gateway closes the call, or, after `drain`, to the last stream; raise BatonError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(work) for work in (self._read(requests, tasks), self._beat(), self._listen())
                ]
                await self._write_all(write)
                for task in beside:
                    task.cancel()
        except* BatonError as group:
            raise group.exceptions[0] from None
        finally:
            for stream in list(self._streams.values()):
                stream.cancel()
            self.over.set()

    def drain(self, *, is_leaving: bool = False) -> None:
        """End after the last stream, and say if that is because the node shuts down."""
        self._is_ending = True
        if is_leaving:
            self.open_batch().is_leaving = True
        self._has_news.set()

    def give_up(self, error: BatonError) -> None:
        """End all streams with an error."""
        for stream in list(self._streams.values()):
            stream.give_up(error)

    def open_batch(self) -> ResponseBatch:
        """Return the batch that is gathering; it is written once this turn of the event loop is over."""
        batch = self._batch
        if batch is None or batch.is_full:
            if batch is not None:
                self._full.append(batch)
            batch = self._batch = ResponseBatch()
            self._has_news.set()
        return batch

    def forget(self, stream_id: int) -> None:
        """Drop a stream that has ended."""
        self._streams.pop(stream_id, None)

    async def _read(self, requests: AsyncIterator[messages.ServeRequest], tasks: asyncio.TaskGroup) -> None:
        async for request in requests:
            self._silent_seconds, self._beat_seconds = 0.0, seconds_from_duration(request.beat_interval)
            for start in request.starts:
                self._start(start, tasks)
            for stream_id in request.cancelled_stream_ids:
                if (stream := self._streams.pop(stream_id, None)) is not None:
                    stream.cancel()
        self._beat_seconds = 0.0  # who has closed the call for sending has no more to say
        self.drain()

    def _start(self, start: messages.StreamStart, tasks: asyncio.TaskGroup) -> None:
        if start.stream_id <= self._last_stream_id:
            raise InvalidFieldError("stream_id", f"expected more than {self._last_stream_id}, got {start.stream_id}")
        self._last_stream_id = start.stream_id
        stream = _GatewayStream(self, start)
        self._streams[start.stream_id] = stream
        contextvars.copy_context().run(stream.start, self._generator, tasks)

    async def _write_all(self, write: Write) -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while (batch := self._take_batch()) is not None:
                try:
                    async with asyncio.timeout(WRITE_TIMEOUT_SECONDS):
                        await write(batch.message())
                        batch.note_written()
                except TimeoutError:
                    text = f"the gateway took no message for {WRITE_TIMEOUT_SECONDS:g} s"
                    raise UnavailableError(text, reason="SLOW_GATEWAY") from None
            if self._is_ending and not self._streams:
                return

    def _take_batch(self) -> ResponseBatch | None:
        if self._full:
            return self._full.popleft()
        batch, self._batch = self._batch, None
        return batch

    async def _listen(self) -> None:
        """End the call when its gateway says nothing any more; where this node was itself stopped, two looks passed."""
        while True:
            begun = self._loop.time()
            await asyncio.sleep(_LOOK_SECONDS)
            self._silent_seconds += min(self._loop.time() - begun, 2 * _LOOK_SECONDS)
            if self._streams and self._silent_seconds >= MISSED_BEATS * self._beat_seconds > 0:
                raise UnavailableError("the gateway was silent", reason=GATEWAY_SILENT)

    async def _beat(self) -> None:
        """Ask the engine for a sign of life while anybody waits for it."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            if self._streams:
                self._generator.node.engine.call(self._answer)

    def _answer(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.open_batch().add_engine_alive())


class _GatewayStream:
    """One generation of a call: puts tokens and the end into the batch that is gathering."""

    def __init__(self, call: GatewayCall, start: messages.StreamStart) -> None:
        self._call = call
        self._request = start.request
        self._id = start.stream_id
        self._has_logprobs = start.request.sampling.HasField("top_logprob_count")
        self._span = RequestSpan(METHOD, start.trace_context, call.address)
        self._generation: Generation | None = None

    def start(self, generator: DecodeGenerator, tasks: asyncio.TaskGroup) -> None:
        """Begin, in a context of its own: its span is current there."""
        self._span.begin()
        try:
            self._generation = generator.start(self._request, self, tasks)
        except BatonError as error:
            self.failed(error)
        except Exception:  # the edge of the stream: others share the call
            log.exception("stream_failed request=%s", self._request.request_id)
            self.failed(BatonError("internal error of the decode node"))
        else:
            self._call.open_batch().accepted.append(self._id)

    def cancel(self) -> None:
        """End without an answer."""
        self._drop()
        self._span.end(grpc.StatusCode.CANCELLED)

    def give_up(self, error: BatonError) -> None:
        """End with an error, whatever the engine does."""
        self._drop()
        self.failed(error)

    def _drop(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()

    def prompt(self, position: int, tokens: Sequence[SampledToken]) -> None:
        self._call.open_batch().add_prompt(self._id, position, tokens)

    def token(self, output_index: int, token: SampledToken) -> None:
        batch = self._call.open_batch()
        if self._has_logprobs:
            batch.add_token_with_logprobs(self._id, output_index, token)
        else:
            batch.add_token(self._id, output_index, token.token_id)

    def isolated(self, isolated: Isolated) -> None:
        self._call.open_batch().add_isolated(self._id, isolated)

    def finished(self, finished: messages.Finished) -> None:
        self._call.open_batch().add_finished(self._id, finished)
        self._call.forget(self._id)
        self._generation = None  # which knows this stream
        self._span.end()

    def failed(self, error: BatonError) -> None:
        self._call.open_batch().add_failed(self._id, error)
        self._call.forget(self._id)
        self._generation = None  # which knows this stream
        self._span.end(code_of(error), error.message)


class ResponseBatch:
    """Gathers the output of a call's generations in one list per message field: a token costs three appends."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        """Streams that were taken."""
        self._prompts: list[messages.StreamPrompt] = []
        self._stream_ids: list[int] = []
        self._output_indexes: list[int] = []
        self._token_ids: list[int] = []
        self._chunks: list[messages.StreamTokens] = []
        self._finished: list[messages.StreamFinished] = []
        self._failed: list[messages.StreamFailed] = []
        self._is_engine_alive = False
        self.is_leaving = False
        """Whether the node shuts down."""
        self._alone_stream_id: int | None = None
        self._told = list[Callable[[], None]]()
        self._num_prompt_tokens = 0

    @property
    def is_full(self) -> bool:
        """Return whether the next token belongs to another message."""
        return len(self._token_ids) + len(self._chunks) + self._num_prompt_tokens >= MAX_TOKENS

    def add_prompt(self, stream_id: int, position: int, tokens: Sequence[SampledToken]) -> None:
        """Add log-probabilities of a prompt."""
        chunk = messages.PromptChunk(position=position, logprobs=map(token_to_proto, tokens))
        self._prompts.append(messages.StreamPrompt(stream_id=stream_id, chunk=chunk))
        self._num_prompt_tokens += len(tokens)

    def add_token(self, stream_id: int, output_index: int, token_id: int) -> None:
        """Add a token."""
        self._stream_ids.append(stream_id)
        self._output_indexes.append(output_index)
        self._token_ids.append(token_id)

    def add_token_with_logprobs(self, stream_id: int, output_index: int, token: SampledToken) -> None:
        """Add a token with its log-probabilities."""
        chunk = messages.TokenChunk(
            output_index=output_index, token_ids=[token.token_id], logprobs=[token_to_proto(token)]
        )
        self._chunks.append(messages.StreamTokens(stream_id=stream_id, chunk=chunk))

    def add_finished(self, stream_id: int, finished: messages.Finished) -> None:
        """Say that a stream has ended well."""
        self._finished.append(messages.StreamFinished(stream_id=stream_id, finished=finished))

    def add_failed(self, stream_id: int, error: BatonError) -> None:
        """Say that a stream has failed, in the words of `rpc/status.py`."""
        failed = messages.StreamFailed(
            stream_id=stream_id,
            code=code_of(error).value[0],
            message=error.message,
            reason=error.reason,
            metadata=error.metadata,
        )
        self._failed.append(failed)

    def add_engine_alive(self) -> None:
        """Say that the engine has answered."""
        self._is_engine_alive = True

    def add_isolated(self, stream_id: int, isolated: Isolated) -> None:
        """Say whether the next pass is a stream's alone; the engine waits until that is written."""
        self._alone_stream_id = stream_id if isolated.is_alone else 0
        self._told.append(isolated.told)

    def note_written(self) -> None:
        """Tell those that wait for it."""
        for told in self._told:
            told()

    def message(self) -> messages.ServeResponse:
        """Return what has been gathered."""
        return messages.ServeResponse(
            accepted_stream_ids=self.accepted,
            prompts=self._prompts,
            token_stream_ids=self._stream_ids,
            token_output_indexes=self._output_indexes,
            token_ids=self._token_ids,
            tokens=self._chunks,
            finished=self._finished,
            failed=self._failed,
            is_engine_alive=self._is_engine_alive,
            alone_stream_id=self._alone_stream_id,
            is_leaving=self.is_leaving,
        )
