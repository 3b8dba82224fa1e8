"""The gateway's links to decode nodes: a channel and a `Serve` call each, which carries all generations there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeAlias

import grpc
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.errors import BatonError, StreamBrokenError, UnavailableError
from baton.gateway.cluster.attempt import TOKEN_TIMEOUT, Attempt, closed_error
from baton.gateway.cluster.quarantine import NodeLostError
from baton.internal.v1.decode_service_pb2 import (
    DecodeServiceGenerateRequest,
    Finished,
    ServeRequest,
    ServeResponse,
    StreamStart,
)
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.rpc.loop_channel import LoopChannel, LoopStream, client_span
from baton.rpc.status import MISSED_BEATS, PEER_SILENT, error_from_parts, error_from_rpc, is_of_connection
from baton.telemetry.tracing import current_context
from baton.wire.quantities import duration_from_seconds

log = logging.getLogger(__name__)

_SERVE_PATH = "/baton.internal.v1.DecodeService/Serve"
_MAX_LINKS = 256
_BEAT_SECONDS = 0.1
"""Longest time between two messages of a call with streams, by which a node knows that the gateway is there."""
_SILENCE_SECONDS = 0.7
"""After so long without a message nodes take the gateway for gone: a busy machine may hold six back. Its work is free
within a second: a look of the node, the pass that runs, and 0.1 s until routers hear of it come on top."""
_LARGE_BYTES, _SLOW_BYTES_PER_SECOND = 1 << 16, 1 << 20
"""A larger message is announced: nothing follows it until it has arrived, by a link of that rate or a quicker one."""
_MAX_TOKENS_PER_MESSAGE = 1 << 20
"""Prompt tokens of the starts of one message: 5 MiB at most, unless a single one is longer."""
_ANSWER_SECONDS = 0.25
"""For a process to say that it lives, when a connection to it has been lost; one that has ended refuses at once."""

DecodeStream: TypeAlias = LoopStream[ServeResponse]


class NodeLinks:
    """Keeps a link per address, inside `async with`.

    Invariant: at most 256 are kept beside those in use; of the others the one unused for longest is dropped first.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._links: OrderedDict[str, NodeLink] = OrderedDict()

    async def __aenter__(self) -> NodeLinks:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        links, self._links = self._links, OrderedDict()
        for link in links.values():
            await link.close()
        # Told of no error: a task group would wrap it in a group, and the caller expects it as it is.
        await self._tasks.__aexit__(None, None, None)

    async def follow(self, address: str, request: DecodeServiceGenerateRequest, attempt: Attempt) -> Finished | None:
        """Generate on the node at host:port, in the trace that is current; cancelling this frees it there.

        Returns what the node reported at the end; None if the tokens taken ended it. Raises BatonError why the attempt
        failed.
        """
        link = self._links.pop(address, None) or NodeLink(LoopChannel(address), self._tasks)
        self._links[address] = link
        if len(self._links) > _MAX_LINKS:
            self._drop_unused(beside=link)
        with client_span(_SERVE_PATH, address):
            return await link.follow(request, attempt)

    def _drop_unused(self, *, beside: NodeLink) -> None:
        for address, link in self._links.items():
            if link is not beside and not link.num_streams:
                del self._links[address]
                self._tasks.create_task(link.close())
                return


class NodeLink:
    """One node: its channel, and the call that carries its streams, made anew when it has ended."""

    def __init__(self, channel: LoopChannel, tasks: asyncio.TaskGroup) -> None:
        self._channel, self._tasks = channel, tasks
        self._call: DecodeCall | None = None
        self._running: asyncio.Task[None] | None = None
        self.num_streams = 0
        """Streams that it carries."""

    async def follow(self, request: DecodeServiceGenerateRequest, attempt: Attempt) -> Finished | None:
        """Generate; see `NodeLinks.follow`."""
        if self._call is None or not self._call.is_open:
            self._call = DecodeCall(self._channel)
            # A context of its own: the call outlives the request, and must not speak in its trace.
            self._running = self._tasks.create_task(self._call.run(), context=contextvars.Context())
        call = self._call
        self.num_streams += 1
        stream_id = call.open(request, attempt)
        try:
            return await attempt.ended
        except UnavailableError as error:
            if error.reason == TOKEN_TIMEOUT:
                call.retire()
            raise
        finally:
            self.num_streams -= 1
            call.cancel(stream_id)
            attempt.close()

    async def close(self) -> None:
        """End what runs and close the channel."""
        if self._running is not None:
            self._running.cancel()
        await self._channel.close()


class DecodeCall:
    """A `DecodeService.Serve` call. `run` reads it; whatever it brings reaches the attempts without a task's wake-up.

    Invariant: an attempt is in `_attempts` from `open` until it has ended or was cancelled.
    """

    def __init__(self, channel: LoopChannel) -> None:
        self._channel = channel
        self._clock = asyncio.get_running_loop().time
        self._attempts: dict[int, Attempt] = {}
        self._starts: list[StreamStart] = []
        self._cancelled: list[int] = []
        self._has_news = asyncio.Event()
        self._last_stream_id = 0
        self._call: DecodeStream | None = None
        self._alone_stream_id = 0
        self._has_heard = self._is_left = False
        self._is_retired = False
        self._is_over = False

    @property
    def is_open(self) -> bool:
        """Return whether streams can be opened."""
        return not (self._is_over or self._is_retired)

    def open(self, request: DecodeServiceGenerateRequest, attempt: Attempt) -> int:
        """Begin a stream in the trace that is current; return its id."""
        self._last_stream_id += 1
        stream_id = self._last_stream_id
        self._attempts[stream_id] = attempt
        self._starts.append(StreamStart(stream_id=stream_id, request=request, trace_context=current_context()))
        self._has_news.set()
        return stream_id

    def cancel(self, stream_id: int) -> None:
        """End a stream if it has not ended: the node drops it."""
        if self._attempts.pop(stream_id, None) is not None and not self._is_over:
            self._cancelled.append(stream_id)
            self._has_news.set()
        if self._is_retired:
            self.retire()

    def retire(self) -> None:
        """Open no more streams, and end with the last one; for a call on which a node has fallen silent."""
        self._is_retired = True
        if self._call is not None and not self._attempts:
            self._call.cancel()

    async def run(self) -> None:
        """Carry streams until the call ends; those that are left fail with the cause."""
        self._call = call = DecodeServiceStub(self._channel).Serve()  # type: ignore[no-untyped-call]
        error: Exception = closed_error()
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write_all(call))
                error = await self._read_all(call)
                writing.cancel()
        except Exception:  # the edge of the task: its streams are told, and the next one opens another call
            log.exception("serve_call_failed")
        finally:
            self._is_over = True
            call.cancel()
            is_lost = False
            try:
                is_lost = bool(self._attempts) and self._may_be_lost(error) and not await self._answers()
            finally:
                self._fail_all(error, is_lost=is_lost)

    async def _read_all(self, call: DecodeStream) -> Exception:
        """Read until the end; return why it came."""
        try:
            while isinstance(response := await call.read(), ServeResponse):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            return error_from_rpc(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return closed_error()  # grpc.aio ends calls of a closed channel like cancelled ones
        return StreamBrokenError("the decode node ended the stream without saying how the generation ended")

    def _take(self, response: ServeResponse) -> None:
        now_seconds, attempts = self._clock(), self._attempts
        self._has_heard = True
        for stream_id in response.accepted_stream_ids:
            if (attempt := attempts.get(stream_id)) is not None:
                attempt.note_progress(now_seconds)
        for part in response.prompts:
            if (attempt := attempts.get(part.stream_id)) is not None:
                attempt.take_prompt(now_seconds, part.chunk)
        if response.token_ids:
            self._take_columns(now_seconds, response)
        for entry in response.tokens:
            if (attempt := attempts.get(entry.stream_id)) is not None:
                chunk = entry.chunk
                attempt.take_tokens(now_seconds, chunk.output_index, chunk.token_ids, chunk.logprobs)
        for end in response.finished:
            if (attempt := attempts.pop(end.stream_id, None)) is not None:
                attempt.finish(end.finished)
        for failure in response.failed:
            if (attempt := attempts.pop(failure.stream_id, None)) is not None:
                attempt.fail(error_from_parts(failure.code, failure.message, failure.reason, dict(failure.metadata)))
        if response.HasField("alone_stream_id"):
            self._alone_stream_id = response.alone_stream_id
        if response.is_leaving:
            self._is_retired = self._is_left = True
            for attempt in tuple(attempts.values()):
                attempt.leave()
        if response.is_engine_alive:
            for attempt in attempts.values():
                attempt.note_progress(now_seconds)

    def _take_columns(self, now_seconds: float, response: ServeResponse) -> None:
        """Hand out tokens; several of one stream together, so that they cost one write."""
        stream_ids = response.token_stream_ids
        columns = zip(stream_ids, response.token_output_indexes, response.token_ids, strict=True)
        get = self._attempts.get
        if len(set(stream_ids)) == len(stream_ids):
            for stream_id, output_index, token_id in columns:
                if (attempt := get(stream_id)) is not None:
                    attempt.take_tokens(now_seconds, output_index, (token_id,))
            return
        runs: dict[int, tuple[int, list[int]]] = {}
        for stream_id, output_index, token_id in columns:
            runs.setdefault(stream_id, (output_index, []))[1].append(token_id)
        for stream_id, (output_index, token_ids) in runs.items():
            if (attempt := get(stream_id)) is not None:
                attempt.take_tokens(now_seconds, output_index, token_ids)

    async def _write_all(self, call: DecodeStream) -> None:
        """Send starts and cancellations as they come, those that have gathered together."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_SECONDS if self._attempts else None):
                        await self._has_news.wait()
                self._has_news.clear()
                await self._write_next(call)
                while self._starts or self._cancelled:
                    await self._write_next(call)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees why

    async def _write_next(self, call: DecodeStream) -> None:
        request = self._next_request()
        if (num_bytes := request.ByteSize()) > _LARGE_BYTES:
            await call.write(ServeRequest(beat_interval=_promise(num_bytes / _SLOW_BYTES_PER_SECOND)))
        await call.write(request)

    def _next_request(self) -> ServeRequest:
        """Return what goes out next. Of a stream that was cancelled before its start went out, the node never hears."""
        starts = [start for start in self._starts if start.stream_id in self._attempts]
        unheard = {start.stream_id for start in self._starts}.difference(self._attempts)
        cancelled = [stream_id for stream_id in self._cancelled if stream_id not in unheard]
        num_starts = _num_starts(starts)
        self._starts, self._cancelled = starts[num_starts:], []
        return ServeRequest(starts=starts[:num_starts], cancelled_stream_ids=cancelled, beat_interval=_promise())

    def _may_be_lost(self, error: Exception) -> bool:
        """Return whether the node's process may have ended, as far as the end of the call tells."""
        is_of_peer = not isinstance(error, BatonError) or not is_of_connection(error) or error.reason == PEER_SILENT
        return self._has_heard and not self._is_left and not is_of_peer

    async def _answers(self) -> bool:
        """Return whether the node's process lives: a connection may be cut between two that do."""
        try:
            await HealthStub(self._channel).Check(HealthCheckRequest(), timeout=_ANSWER_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED and not is_of_connection(error_from_rpc(error))
        return True

    def _fail_all(self, error: Exception, *, is_lost: bool) -> None:
        attempts, self._attempts = self._attempts, {}
        is_told = self._alone_stream_id in attempts
        for stream_id, attempt in attempts.items():
            cause = error
            if is_lost and isinstance(error, BatonError):
                is_blamed = stream_id == self._alone_stream_id if is_told else None
                cause = NodeLostError(error, len(attempts), is_blamed=is_blamed)
            attempt.fail(cause)


def _promise(sending_seconds: float = 0.0) -> Duration:
    """Return the beat that nodes are told, of a message that takes so long to send, too."""
    return duration_from_seconds(_SILENCE_SECONDS / MISSED_BEATS + sending_seconds)


def _num_starts(starts: Sequence[StreamStart]) -> int:
    """Return how many starts go into the next message."""
    num_tokens = 0
    for index, start in enumerate(starts):
        num_tokens += len(start.request.prompt_token_ids) + len(start.request.output_token_ids)
        if num_tokens > _MAX_TOKENS_PER_MESSAGE and index:
            return index
    return len(starts)
