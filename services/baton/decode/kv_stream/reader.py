"""Takes a prompt's KV from prefill nodes into the engine; the request decodes only when all of it is confirmed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from opentelemetry import trace

from baton.decode.kv_stream.clock import Reception, ReceptionClock
from baton.decode.kv_stream.prefill_source import KvSource
from baton.engine.engine import Engine
from baton.errors import BatonError, MismatchError, StreamBrokenError
from baton.kv.kv_format import KvLayout, is_kept_exactly
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, tokens_crc32c, unpack_frame
from baton.kv_transport.fast_channel import Message
from baton.kv_transport.frame_codec import ReceivedFrame, totals_from_proto
from baton.kv_transport.kv_service import request_crc32c, serialize_request
from baton.node.requests import token_from_proto
from baton.telemetry import names
from baton.telemetry.layer_spans import LayerSpans, frame_attributes
from baton.v1 import block_service_pb2, kv_pb2, prefill_service_pb2
from baton.wire.durations import seconds_from_duration
from baton.wire.kv import layout_from_proto, wire_from_proto

_Message = TypeVar("_Message", Message, block_service_pb2.PullBlocksResponse | ReceivedFrame)
MAX_FRAMES_IN_FLIGHT = 8
"""Frames read from the network and not yet written by the engine; more wait in HTTP/2's window."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a silent stream is waited for."""

    first_frame_seconds: float
    """Until the first frame or token: the prefill node may have a queue."""
    frame_seconds: float
    """Between any two messages afterwards."""


class SilentStreamError(StreamBrokenError):
    """Nothing has come for too long: the node hangs, or all that it could still bring would come too late."""


class _Unpacking(NamedTuple):
    """A frame that is becoming one of the cache's own format."""

    frame: asyncio.Future[KvFrame]
    """The frame."""
    progress: KvProgress
    """What counts once it has been written."""


class KvReceiver:
    """Reads the KV streams of one request, one after the other, each for what is still missing.

    Invariants: `progress` counts a frame only once it has proven its stream, its place and its bytes, and the engine
    has been told to write it, and nothing of senders that contradict themselves; the first token is delivered once, by
    whichever stream brings it first.

    Args:
        engine: Where the KV goes.
        request_id: The engine's name of the request.
        progress: What the request has before its first stream.
        layout: This node's cache.
        timeouts: How long a silent stream is waited for.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        engine: Engine,
        request_id: str,
        progress: KvProgress,
        layout: KvLayout,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request_id = request_id
        self._begin = progress
        self.progress = progress
        """What counts of all that has come."""
        self.has_first_token = False
        """Whether the first token has been delivered."""
        self.reception = Reception(ReceptionClock(clock()))
        self._engine = engine
        self._layout = layout
        self._timeouts = timeouts
        self._clock = clock
        self._spans = LayerSpans("transfer", clock)
        self._slots = asyncio.Semaphore(MAX_FRAMES_IN_FLIGHT)
        self._stream_layout = layout
        self._is_rounded = False
        self._unpacking: _Unpacking | None = None

    def frame_landed(self) -> None:
        """Take note that the engine has written a frame."""
        self._slots.release()

    def commit(self) -> None:
        """Tell the engine that the KV is complete: it may decode."""
        self._engine.commit_kv(self.request_id)

    async def run(self, source: KvSource, request: prefill_service_pb2.PrefillRequest) -> None:
        """Call the prefill node and take everything up to the summary; then the engine may decode.

        Raises:
            BatonError: If the call fails, the layouts differ, or the stream breaks its rules.
        """
        self.reception.clock.called = self._clock()
        self._stream_layout = replace(self._layout, wire=wire_from_proto(request, self._layout))
        limit = self._timeouts.first_frame_seconds
        if request.stream_number:  # nothing precedes the layout but the call, and others may be asked
            limit = min(limit, self._timeouts.frame_seconds)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(limit):
                    messages = await stack.enter_async_context(source.prefill(request, self.reception))
            except TimeoutError:
                raise SilentStreamError(f"the stream was silent for {limit:g} seconds") from None
            stack.callback(self._drop_unpacked)
            await self._take(timed(messages, self._timeouts), request)

    async def _take(
        self,
        messages: AsyncIterator[Message],
        request: prefill_service_pb2.PrefillRequest,
    ) -> None:
        ledger: StreamLedger | None = None
        has_first_token = False
        async for message in messages:
            if isinstance(message, ReceivedFrame):
                if ledger is None:
                    raise StreamBrokenError("a frame came before the layout")
                await self._take_frame(message, ledger)
                del message  # its sender may need the memory for the next one
                continue
            element = message.WhichOneof("element")
            if element == "layout" and ledger is None:
                ledger = self._take_layout(message, request)
            elif ledger is None or element == "layout":
                raise StreamBrokenError(f"{element} came {'twice' if ledger else 'before the layout'}")
            elif element == "first_token" and not has_first_token:
                self._take_first_token(message.first_token, request)
                has_first_token = True
            elif element == "summary" and has_first_token:
                await self._write_unpacked()
                self._take_summary(message.summary, ledger)
                return
            else:
                raise StreamBrokenError(f"{element} came out of order")
        raise StreamBrokenError("the stream ended without its summary")

    def _take_first_token(
        self, message: prefill_service_pb2.FirstToken, request: prefill_service_pb2.PrefillRequest
    ) -> None:
        trace.get_current_span().add_event(names.EVENT_FIRST_TOKEN)
        token = token_from_proto(message.token, has_logprob=request.sampling.HasField("top_logprob_count"))
        vocabulary_size = self._engine.runner.info.vocabulary_size
        if not 0 <= token.token_id < vocabulary_size:
            raise StreamBrokenError(f"first token {token.token_id} is not in 0 to {vocabulary_size - 1}")
        if tokens_crc32c(request.token_ids, token.token_id) != message.crc32c:
            raise StreamBrokenError("prompt or first token have a wrong checksum: they were changed on the way")
        if message.HasField("compute_duration"):  # the summary, which says the same, may never be waited for
            self.reception.prefill_cached_tokens = message.cached_token_count
            self.reception.queue_seconds = seconds_from_duration(message.queue_duration)
            self.reception.compute_seconds = seconds_from_duration(message.compute_duration)
        if not self.has_first_token:  # an earlier stream's is the client's already
            self.has_first_token = True
            self._engine.take_first_token(self.request_id, token)

    def _take_layout(
        self, message: prefill_service_pb2.PrefillResponse, request: prefill_service_pb2.PrefillRequest
    ) -> StreamLedger:
        self.reception.clock.layout_arrived(self._clock())
        layout = message.layout
        sender = layout_from_proto(layout)
        self._layout.check_matches(sender, is_converted=bool(request.wire_dtype))
        expected, wire = self._stream_layout.wire_format, wire_from_proto(layout, sender, self._layout.dtype)
        for field, mine, theirs in zip(("wire_dtype", "value_wire_dtype"), expected, wire, strict=True):
            if mine is not theirs:
                raise MismatchError(field, mine.value, theirs.value)
        self.reception.wire = wire
        self._is_rounded = not is_kept_exactly(sender.dtype, wire, self._layout.dtype)
        attributes = {names.KEY_WIRE_DTYPE: wire.keys.value, names.VALUE_WIRE_DTYPE: wire.values.value}
        trace.get_current_span().set_attributes(attributes)
        if not message.HasField("request_crc32c"):
            return StreamLedger(self._stream_layout, self.progress)
        if message.request_crc32c != request_crc32c(serialize_request(request)):
            raise StreamBrokenError("the prefill node answers another request: this one was changed on the way")
        return StreamLedger(self._stream_layout, self.progress, message.request_crc32c)

    async def _take_frame(self, received: ReceivedFrame, ledger: StreamLedger) -> None:
        frame = received.frame
        clock, now = self.reception.clock, self._clock()
        self._spans.add(frame, clock.way_began(frame.ready_seconds), now)
        clock.frame_arrived(now, frame.ready_seconds)
        if self.reception.timeline is not None:
            self.reception.timeline.add(frame, clock.origin + frame.ready_seconds, now)
        crcs = (received.crc32c, received.actual_crc32c, received.header_crc32c)
        ledger.enter(frame, received.sequence_number, *crcs)
        self.reception.num_frames += 1
        self.reception.num_bytes += frame.num_bytes
        trace.get_current_span().add_event(names.EVENT_FRAME_RECEIVED, frame_attributes(frame))
        await self._write_unpacked()
        if self._stream_layout.is_wire_lossless:
            await self._write(frame, ledger.progress)
        else:
            codec, loop = self._engine.runner.wire_codec, asyncio.get_running_loop()
            unpacked = loop.run_in_executor(None, unpack_frame, codec, self._stream_layout, frame)
            self._unpacking = _Unpacking(unpacked, ledger.progress)

    async def _write_unpacked(self) -> None:
        """Have the frame written that is being unpacked beside the event loop, while the next one arrives."""
        if self._unpacking is not None:
            frame, progress = await self._unpacking.frame, self._unpacking.progress
            self._unpacking = None
            await self._write(frame, progress)

    async def _write(self, frame: KvFrame, progress: KvProgress) -> None:
        await self._slots.acquire()
        self._engine.write_kv(self.request_id, frame, is_rounded=self._is_rounded)
        self.progress = progress

    def _drop_unpacked(self) -> None:
        if self._unpacking is not None:
            self._unpacking.frame.cancel()
            self._unpacking = None

    def _take_summary(self, message: kv_pb2.KvSummary, ledger: StreamLedger) -> None:
        try:
            ledger.close(totals_from_proto(message))
        except StreamBrokenError:
            self.progress = self._begin  # whoever miscounts what it sends may have sent anything
            raise
        self.reception.prefill_cached_tokens = message.cached_token_count
        self.reception.queue_seconds = seconds_from_duration(message.queue_duration)
        self.reception.compute_seconds = seconds_from_duration(message.compute_duration)
        self.reception.prefill_peak_memory_bytes = message.peak_memory_byte_count
        self.reception.prefill_energy_joules = message.energy_joules if message.HasField("energy_joules") else None
        self.reception.clock.summary_arrived(self.reception.queue_seconds + self.reception.compute_seconds)
        self.commit()


async def timed(messages: AsyncIterable[_Message], timeouts: Timeouts) -> AsyncIterator[_Message]:
    """Yield messages; a silence longer than allowed breaks the stream."""
    limit = timeouts.first_frame_seconds
    iterator = aiter(messages)
    while True:
        try:
            async with asyncio.timeout(limit):  # wait_for would swallow a cancellation that meets a message
                message = await anext(iterator)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise SilentStreamError(f"the stream was silent for {limit:g} seconds") from None
        if isinstance(message, ReceivedFrame) or message.WhichOneof("element") != "layout":
            limit = timeouts.frame_seconds
        yield message
        del message  # its sender may need the memory for the next one


def reason_of(error: BatonError) -> str:
    """Return a short cause for metrics and summaries: the error's reason, and the field where one is named."""
    field = error.metadata.get("field")
    return f"{error.reason}:{field}" if field else error.reason
