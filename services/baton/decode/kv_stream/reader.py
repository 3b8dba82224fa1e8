"""Reads KV streams of other nodes into the engine, whoever sends them, and keeps what is known of each."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, NamedTuple, TypeVar

import grpc
from opentelemetry import trace

from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.measurement import Reception, ReceptionClock
from baton.engine.engine import Engine
from baton.errors import BatonError, ForbiddenError, MismatchError, StreamBrokenError, UnavailableError
from baton.internal.v1 import block_service_pb2, kv_pb2, prefill_service_pb2
from baton.kv.kv_format import KvLayout, is_kept_exactly
from baton.kv.stream import ContradictionError, KvFrame, KvProgress, StreamLedger, unpack_frame
from baton.kv_transport.frame_codec import ReceivedFrame, totals_from_proto
from baton.rpc.error_interceptor import Undecodable
from baton.rpc.status import error_from_rpc
from baton.security.access import NOT_GRANTED
from baton.telemetry import names
from baton.telemetry.tracing import LayerSpans, frame_attributes
from baton.wire.kv import layout_from_proto, wire_from_proto
from baton.wire.quantities import seconds_from_duration

Response = prefill_service_pb2.PrefillResponse | block_service_pb2.PullBlocksResponse
"""What a stream brings besides frames."""
_Message = TypeVar("_Message", bound=Response | ReceivedFrame)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a silent stream is waited for."""

    first_frame_seconds: float
    """Until the first frame or token: the prefill node may have a queue."""
    frame_seconds: float
    """Between any two messages afterwards."""


class SilentStreamError(StreamBrokenError):
    """Nothing has come for too long: the node hangs, or all that it could still bring would come too late."""


class StreamTerms(NamedTuple):
    """What the request that a stream answers has settled."""

    layout: KvLayout
    """This cache, and in what frames are to travel."""
    request_crc32c: int
    """Checksum of the request: key of the stream's frames."""
    is_converted: bool
    """Whether the sender's cache may have other numbers than this one."""
    transfer_answer: bytes
    """By which the node that the router meant shows itself."""


class StreamPromise(NamedTuple):
    """What the first message of a stream announces."""

    owed: KvProgress
    request_crc32c: int | None
    """Checksum of the request as the sender got it; None: it cannot tell, and no frame proves whose it is."""


class _Unpacking(NamedTuple):
    """A frame that is becoming one of the cache's own format."""

    frame: asyncio.Future[KvFrame]
    progress: KvProgress
    """What counts once it has been written."""


class FrameWindow:
    """Frames of a stream that the engine has still to write.

    Invariant, kept by `enter`: they have `ReceiveBudget.stream_bytes` together at most, or one alone has more; they
    land in the order in which they entered. Each has credit of the node until it landed, or the window is closed. The
    engine writes between passes: a small window would be all that comes during one, the first token behind it.
    """

    def __init__(self, budget: ReceiveBudget) -> None:
        self._budget = budget
        self._sizes: deque[int] = deque()
        self._num_bytes = 0
        self._room = asyncio.Event()

    async def enter(self, num_bytes: int) -> bool:
        """Take a frame in when there is room; return whether it had to wait for that."""
        has_waited = False
        while self._sizes and self._num_bytes + num_bytes > self._budget.stream_bytes:
            has_waited = True
            self._room.clear()
            await self._room.wait()
        has_waited = await self._budget.take(num_bytes) or has_waited
        self._sizes.append(num_bytes)
        self._num_bytes += num_bytes
        return has_waited

    def landed(self) -> None:
        """Take note that the engine has written a frame."""
        num_bytes = self._sizes.popleft()
        self._num_bytes -= num_bytes
        self._budget.give_back(num_bytes)
        self._room.set()

    def close(self) -> None:
        """Give back the credit of frames that will not land any more."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        self._sizes.clear()
        self._budget.give_back(num_bytes)


class KvStreamReader(ABC):
    """Reads the KV streams of one request, one after the other; subclasses know what surrounds the frames.

    Invariant: `progress` counts a frame only once it has proven its stream, its place and its bytes, and the engine has
    been told to write it, and nothing of senders that contradict themselves.
    """

    def __init__(
        self, engine: Engine, engine_id: str, progress: KvProgress, layout: KvLayout, budget: ReceiveBudget
    ) -> None:
        self.engine_id = engine_id
        self.progress = progress
        """What counts of all that has come."""
        self.reception = Reception(ReceptionClock(time.perf_counter()))
        self._begin = progress
        self._engine, self._layout = engine, layout
        self._spans = LayerSpans("transfer", time.perf_counter)
        self._window, self._budget = FrameWindow(budget), budget
        self._is_rounded = False
        self._unpacking: _Unpacking | None = None

    def frame_landed(self) -> None:
        """Take note that the engine has written a frame."""
        self._window.landed()

    def close(self) -> None:
        """Take note that the request has ended: the engine drops the frames that it has not written."""
        self._window.close()

    @abstractmethod
    def _promise(self, message: Any) -> StreamPromise:
        """Return what the message with the layout promises; raise BatonError if it answers no request of this node."""

    def _take_element(self, element: str | None, message: Any) -> None:  # noqa: ARG002
        """Take what comes between layout and summary besides frames; raise StreamBrokenError if it is not due."""
        raise StreamBrokenError(f"{element} came out of order")

    @abstractmethod
    def _take_summary(self, summary: kv_pb2.KvSummary) -> None:
        """Take the end of a stream that has kept its promise."""

    async def _read(self, messages: AsyncIterator[Response | ReceivedFrame], terms: StreamTerms) -> None:
        """Take a stream up to its summary; raise BatonError if the layouts differ, or the stream breaks its rules."""
        ledger: StreamLedger | None = None
        try:
            async for message in messages:
                if isinstance(message, ReceivedFrame):
                    if ledger is None:
                        raise StreamBrokenError("a frame came before the layout")
                    await self._take_frame(message, ledger, terms.layout)
                    del message  # its sender may need the memory for the next one
                    continue
                element = message.WhichOneof("element")
                if element == "layout" and ledger is None:
                    ledger = self._take_layout(message, terms)
                elif ledger is None or element == "layout":
                    raise StreamBrokenError(f"{element} came {'twice' if ledger else 'before the layout'}")
                elif element == "summary":
                    await self._write_unpacked()
                    self._close(ledger, message.summary)
                    return
                else:
                    self._take_element(element, message)
            raise StreamBrokenError("the stream ended without its summary")
        finally:
            if self._unpacking is not None:
                self._unpacking.frame.cancel()
                self._unpacking = None

    def _take_layout(self, message: Response, terms: StreamTerms) -> StreamLedger:
        """Return the account of a stream that answers the request, and brings what this cache can hold."""
        self.reception.clock.layout_arrived(time.perf_counter(), seconds_from_duration(message.clock))
        if not compare_digest(message.transfer_answer, terms.transfer_answer):
            problem = "transfer_answer: another node answers than the router has named, or its process is another"
            raise ForbiddenError(problem, reason=NOT_GRANTED, metadata={"field": "transfer_answer"})
        sender = layout_from_proto(message.layout)
        self._layout.check_matches(sender, is_converted=terms.is_converted)
        wire = wire_from_proto(message.layout, sender, self._layout.dtype)
        for field, mine, theirs in zip(("wire_dtype", "value_wire_dtype"), terms.layout.wire_format, wire, strict=True):
            if mine is not theirs:
                raise MismatchError(field, mine.value, theirs.value)
        self.reception.wire = wire
        self._is_rounded = not is_kept_exactly(sender.dtype, wire, self._layout.dtype)
        attributes = {names.KEY_WIRE_DTYPE: wire.keys.value, names.VALUE_WIRE_DTYPE: wire.values.value}
        trace.get_current_span().set_attributes(attributes)
        promise = self._promise(message)
        if promise.request_crc32c not in (None, terms.request_crc32c):
            raise StreamBrokenError("the node answers another request: this one was changed on the way")
        return StreamLedger(terms.layout, promise.owed, promise.request_crc32c)

    async def _take_frame(self, received: ReceivedFrame, ledger: StreamLedger, layout: KvLayout) -> None:
        frame = received.frame
        reception, now = self.reception, time.perf_counter()
        self._budget.heard.append((reception.clock.called, now))
        self._spans.add(frame, reception.clock.frame_arrived(now, frame.ready_seconds, frame.num_bytes), now)
        if reception.timeline is not None:
            reception.timeline.add(frame, reception.clock.origin + frame.ready_seconds, now)
        sums = received.crc32c, received.actual_crc32c, received.header_crc32c
        try:
            ledger.enter(frame, received.sequence_number, *sums)
        except ContradictionError:
            self.progress = self._begin
            raise
        reception.num_frames += 1
        reception.num_bytes += frame.num_bytes
        trace.get_current_span().add_event(names.EVENT_FRAME_RECEIVED, frame_attributes(frame))
        await self._write_unpacked()
        if layout.is_wire_lossless:
            await self._write(frame, ledger.progress)
        else:
            codec, loop = self._engine.runner.wire_codec, asyncio.get_running_loop()
            unpacked = loop.run_in_executor(None, unpack_frame, codec, layout, frame)
            self._unpacking = _Unpacking(unpacked, ledger.progress)

    async def _write_unpacked(self) -> None:
        """Have the frame written that is being unpacked beside the event loop, while the next one arrives."""
        if self._unpacking is not None:
            frame, progress = await self._unpacking.frame, self._unpacking.progress
            self._unpacking = None
            await self._write(frame, progress)

    async def _write(self, frame: KvFrame, progress: KvProgress) -> None:
        if await self._window.enter(frame.num_bytes):
            self.reception.clock.free_since = time.perf_counter()
        self._engine.write_kv(self.engine_id, frame, is_rounded=self._is_rounded)
        self.progress = progress

    def _close(self, ledger: StreamLedger, summary: kv_pb2.KvSummary) -> None:
        try:
            ledger.close(totals_from_proto(summary))
        except StreamBrokenError:
            self.progress = self._begin  # whoever miscounts what it sends may have sent anything
            raise
        self._take_summary(summary)


class MovingTimeout:
    """A timeout at a moment of the event loop's time, asked for again when it has come; none if it has at the start."""

    def __init__(self, moment: Callable[[], float]) -> None:
        self._moment, self._timeout = moment, asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._may_wait()

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(*error)  # type: ignore[arg-type]

    def _look(self) -> None:
        if not self._may_wait():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _may_wait(self) -> bool:
        loop, at = asyncio.get_running_loop(), self._moment()
        if is_ahead := at > loop.time():
            self._timer = loop.call_at(at, self._look)
        return is_ahead


async def timed(
    messages: AsyncIterable[_Message],
    timeouts: Timeouts,
    patient_until: float = 0.0,
    heard_seconds: Callable[[], float] = lambda: math.inf,
) -> AsyncIterator[_Message]:
    """Yield messages; a silence longer than allowed breaks the stream.

    But not before the event loop's time `patient_until`, as long as the prompt may wait for its turn; nor as long after
    frames of streams before this one, for which its own may wait: `heard_seconds` ago the last of them came.
    """
    iterator, now = aiter(messages), asyncio.get_running_loop().time
    limit = max(timeouts.first_frame_seconds, patient_until - now())

    def last_moment() -> float:
        return at if now() < (at := said_at + limit) else now() - heard_seconds() + limit

    while True:
        said_at = now()
        try:
            async with MovingTimeout(last_moment):
                message = await anext(iterator)  # wait_for would swallow a cancellation that meets a message
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise SilentStreamError(f"the stream was silent for {limit:g} seconds") from None
        element = "frame" if isinstance(message, ReceivedFrame) else message.WhichOneof("element")
        if element == "first_token":
            patient_until = 0.0
        if element != "layout":
            limit = max(timeouts.frame_seconds, patient_until - now())
        yield message
        del message  # its sender may need the memory for the next one


@asynccontextmanager
async def grpc_call(call: Any) -> AsyncIterator[AsyncIterable[Any]]:
    """Return the messages of a call, which leaving the context ends; raise BatonError, in it too, if it fails."""
    try:
        yield _readable(call)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        # grpc.aio ends calls of a closed channel like cancelled ones, though nobody cancelled this task.
        raise UnavailableError("the connection to the node was closed", reason="CHANNEL_CLOSED") from None
    finally:
        call.cancel()


def reason_of(error: BatonError) -> str:
    """Return a short cause for metrics and summaries: the error's reason, and the field where one is named."""
    field = error.metadata.get("field")
    return f"{error.reason}:{field}" if field else error.reason


def _is_cancelled() -> bool:
    """Return whether this task was cancelled. A function of its own: an error that knows its task is freed late."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _readable(responses: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for response in responses:
        if isinstance(response, Undecodable):
            raise StreamBrokenError("a message of the KV stream cannot be read")
        yield response
