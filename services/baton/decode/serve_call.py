"""One gateway's call: any number of generations, and one message per pass of the engine for all of them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from baton.decode.generation import Generation, Generator
from baton.decode.response_batch import ResponseBatch
from baton.engine.sampling import SampledToken
from baton.errors import BatonError, InvalidFieldError, UnavailableError
from baton.telemetry.request_span import RequestSpan
from baton.v1 import decode_service_pb2 as messages

log = logging.getLogger(__name__)

METHOD = "/baton.v1.DecodeService/Serve"
WRITE_TIMEOUT_SECONDS = 10.0
"""Time for which a gateway may take no message."""
_HEARTBEAT_SECONDS = 1.0

Write = Callable[[messages.ServeResponse], Awaitable[None]]


class ServeCall:
    """The streams of one call, and what waits to be written to it.

    Invariant: a stream is in `_streams` until its end has been put into a batch, or its cancellation has come. What
    waits is no more than the output of the streams, because each says its own output once.
    """

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, _Stream] = {}
        self._last_stream_id = 0
        self._batch: ResponseBatch | None = None
        self._full: deque[ResponseBatch] = deque()
        self._has_news = asyncio.Event()
        self._is_ending = False

    async def run(self, requests: AsyncIterator[messages.ServeRequest], write: Write) -> None:
        """Serve until the gateway closes the call, or until the last stream after `drain`.

        Raises:
            BatonError: If the gateway breaks the rules, or takes nothing.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(requests, tasks))
                beating = tasks.create_task(self._beat())
                await self._write_all(write)
                reading.cancel()
                beating.cancel()
        except* BatonError as group:
            raise group.exceptions[0] from None
        finally:
            for stream in list(self._streams.values()):
                stream.cancel()

    def drain(self) -> None:
        """End after the last stream."""
        self._is_ending = True
        self._has_news.set()

    def open_batch(self) -> ResponseBatch:
        """Return the message that gathers; it goes out once this turn of the event loop is over."""
        batch = self._batch
        if batch is None or batch.is_full:
            batch = self._begin_batch()
        return batch

    def forget(self, stream_id: int) -> None:
        """Drop a stream that has ended."""
        self._streams.pop(stream_id, None)

    def _begin_batch(self) -> ResponseBatch:
        if self._batch is not None:
            self._full.append(self._batch)
        self._batch = ResponseBatch()
        self._has_news.set()
        return self._batch

    async def _read(self, requests: AsyncIterator[messages.ServeRequest], tasks: asyncio.TaskGroup) -> None:
        async for request in requests:
            for start in request.starts:
                self._start(start, tasks)
            for stream_id in request.cancelled_stream_ids:
                if (stream := self._streams.pop(stream_id, None)) is not None:
                    stream.cancel()
        self.drain()

    def _start(self, start: messages.StreamStart, tasks: asyncio.TaskGroup) -> None:
        if start.stream_id <= self._last_stream_id:
            raise InvalidFieldError("stream_id", f"expected more than {self._last_stream_id}, got {start.stream_id}")
        self._last_stream_id = start.stream_id
        stream = _Stream(self, start)
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

    async def _beat(self) -> None:
        """Ask the engine for a sign of life while anybody waits for it."""
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            if self._streams:
                self._generator.node.engine.call(self._answer)

    def _answer(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self.open_batch().add_engine_alive())


class _Stream:
    """One generation of the call: puts what it says into the message that gathers."""

    def __init__(self, call: ServeCall, start: messages.StreamStart) -> None:
        self._call = call
        self._request = start.request
        self._id = start.stream_id
        self._has_logprobs = start.request.sampling.HasField("top_logprob_count")
        self._span = RequestSpan(METHOD, start.trace_context)
        self._generation: Generation | None = None

    def start(self, generator: Generator, tasks: asyncio.TaskGroup) -> None:
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
            self._call.open_batch().add_accepted(self._id)

    def cancel(self) -> None:
        """End without an answer."""
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()
        self._span.end()

    def prompt(self, position: int, tokens: Sequence[SampledToken]) -> None:
        self._call.open_batch().add_prompt(self._id, position, tokens)

    def token(self, output_index: int, token: SampledToken) -> None:
        batch = self._call.open_batch()
        if self._has_logprobs:
            batch.add_token_with_logprobs(self._id, output_index, token)
        else:
            batch.add_token(self._id, output_index, token.token_id)

    def finished(self, finished: messages.Finished) -> None:
        self._call.open_batch().add_finished(self._id, finished)
        self._call.forget(self._id)
        self._generation = None  # which knows this stream
        self._span.end()

    def failed(self, error: BatonError) -> None:
        self._call.open_batch().add_failed(self._id, error)
        self._call.forget(self._id)
        self._generation = None  # which knows this stream
        self._span.end(error)
