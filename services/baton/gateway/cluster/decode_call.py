"""One attempt at a generation on one decode node: takes its tokens in order, and watches over its silence.

One call to a decode node that carries any number of generations: a message brings the tokens of all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

import grpc

from baton.errors import BatonError, StreamBrokenError, UnavailableError
from baton.rpc.loop_channel import LoopChannel, LoopStream
from baton.rpc.status import error_from_parts, error_from_rpc
from baton.telemetry.tracing import current_context
from baton.v1.decode_service_pb2 import (
    DecodeServiceGenerateRequest,
    Finished,
    PromptChunk,
    ServeRequest,
    ServeResponse,
    StreamStart,
)
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.v1.generation_pb2 import TokenLogprob

TOKEN_TIMEOUT = "TOKEN_TIMEOUT"  # noqa: S105 - a token of a language model
"""Reason of an attempt that ended because its node was silent for too long."""

Take = Callable[[Sequence[int], Sequence[TokenLogprob]], bool]
"""Takes the next tokens, and their log-probabilities if asked for; returns whether they end the generation."""


class Attempt:
    """Told what the node says, by callbacks; the request's task waits for `ended` alone.

    Invariant: `_output` is extended at its end only, so no token is missing and none is there twice.
    """

    def __init__(
        self,
        output_token_ids: list[int],
        prompt_logprobs: list[TokenLogprob],
        take: Take,
        *,
        max_tokens: int,
        first_token_timeout_seconds: float,
        token_timeout_seconds: float,
    ) -> None:
        """Begin to watch.

        Args:
            output_token_ids: Tokens of earlier attempts; those of this one are appended.
            prompt_logprobs: Those of earlier attempts, likewise.
            take: Told of every token, after it was appended.
            max_tokens: Length of the whole output at most.
            first_token_timeout_seconds: Longest silence until a token comes.
            token_timeout_seconds: Longest silence afterwards.
        """
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Finished | None] = loop.create_future()
        """What the node reported at the end; None if the tokens taken ended it; else why the attempt failed."""
        self._output = output_token_ids
        self._prompt_logprobs = prompt_logprobs
        self._take = take
        self._max_tokens = max_tokens
        self._token_timeout_seconds = token_timeout_seconds
        self._watch = _SilenceWatch(self._on_silence, first_token_timeout_seconds)

    def take_tokens(
        self, now_seconds: float, output_index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        """Take consecutive tokens; those that repeat the output are dropped.

        Args:
            now_seconds: The event loop's time.
            output_index: Index of the first in the output.
            token_ids: 1 or more.
            logprobs: One per token if asked for, else empty.
        """
        if self.ended.done():
            return
        self._watch.progress_seconds = now_seconds
        self._watch.timeout_seconds = self._token_timeout_seconds
        try:
            if self._is_next(output_index, len(token_ids)):
                self._output += token_ids
                if self._take(token_ids, logprobs):
                    self.ended.set_result(None)
        except Exception as error:  # the edge of the request: others are told by the same message
            self.fail(error)

    def take_prompt(self, now_seconds: float, chunk: PromptChunk) -> None:
        """Take log-probabilities of consecutive tokens of the prompt; those that are there already are dropped."""
        if self.ended.done():
            return
        self._watch.progress_seconds = now_seconds
        next_position = 1 + len(self._prompt_logprobs)
        if chunk.position == next_position:
            self._prompt_logprobs += chunk.logprobs
        elif chunk.position + len(chunk.logprobs) > next_position:
            text = f"expected prompt position {next_position}, got a chunk that begins at {chunk.position}"
            self.fail(StreamBrokenError(text))

    def note_progress(self, now_seconds: float) -> None:
        """Note that the node works on, without a token of this attempt."""
        self._watch.progress_seconds = now_seconds

    def finish(self, finished: Finished) -> None:
        """End as the node reports."""
        if not self.ended.done():
            self.ended.set_result(finished)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        """Stop watching; nobody waits for `ended` any more, not even for a failure that came too late."""
        self._watch.stop()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()

    def _is_next(self, output_index: int, num_tokens: int) -> bool:
        next_index = len(self._output)
        if output_index == next_index and next_index + num_tokens <= self._max_tokens:
            return True
        if output_index + num_tokens <= next_index:
            return False
        if output_index == next_index:
            raise StreamBrokenError(f"expected {self._max_tokens} output tokens at most, got {num_tokens} more")
        raise StreamBrokenError(f"expected output token {next_index}, got a chunk that begins at {output_index}")

    def _on_silence(self, timeout_seconds: float) -> None:
        text = f"the decode node sent no token for {timeout_seconds:g} s"
        self.fail(UnavailableError(text, reason=TOKEN_TIMEOUT))


class _SilenceWatch:
    """Tells of a time without progress.

    One timer per attempt, moved only when it fires: a token costs two attributes.
    """

    __slots__ = ("_loop", "_on_silence", "_timer", "progress_seconds", "timeout_seconds")

    def __init__(self, on_silence: Callable[[float], None], timeout_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_silence = on_silence
        self.progress_seconds = self._loop.time()
        self.timeout_seconds = timeout_seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(timeout_seconds, self._on_timer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        deadline = self.progress_seconds + self.timeout_seconds
        if self._loop.time() < deadline:
            self._timer = self._loop.call_at(deadline, self._on_timer)
            return
        self._timer = None
        self._on_silence(self.timeout_seconds)


def closed_error() -> BatonError:
    """Return why an attempt fails whose connection the gateway has closed."""
    return UnavailableError("the connection to the decode node was closed", reason="CHANNEL_CLOSED")


log = logging.getLogger(__name__)

_MAX_TOKENS_PER_MESSAGE = 1 << 20
"""Prompt tokens of the starts of one message: 5 MiB at most, unless a single one is longer."""

DecodeStream: TypeAlias = LoopStream[ServeResponse]


class ServeUnknownError(Exception):
    """The node does not know `Serve`; nothing has begun there."""


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
            self._fail_all(error)

    async def _read_all(self, call: DecodeStream) -> Exception:
        """Read until the end; return why it came."""
        try:
            while isinstance(response := await call.read(), ServeResponse):
                self._take(response)
        except grpc.aio.AioRpcError as error:
            is_unknown = error.code() is grpc.StatusCode.UNIMPLEMENTED
            return ServeUnknownError() if is_unknown else error_from_rpc(error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return closed_error()  # grpc.aio ends calls of a closed channel like cancelled ones
        return StreamBrokenError("the decode node ended the stream without saying how the generation ended")

    def _take(self, response: ServeResponse) -> None:
        now_seconds, attempts = self._clock(), self._attempts
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
                await self._has_news.wait()
                self._has_news.clear()
                while self._starts or self._cancelled:
                    await call.write(self._next_request())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader sees why

    def _next_request(self) -> ServeRequest:
        """Return what goes out next. Of a stream that was cancelled before its start went out, the node never hears."""
        starts = [start for start in self._starts if start.stream_id in self._attempts]
        unheard = {start.stream_id for start in self._starts}.difference(self._attempts)
        cancelled = [stream_id for stream_id in self._cancelled if stream_id not in unheard]
        num_starts = _num_starts(starts)
        self._starts, self._cancelled = starts[num_starts:], []
        return ServeRequest(starts=starts[:num_starts], cancelled_stream_ids=cancelled)

    def _fail_all(self, error: Exception) -> None:
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            attempt.fail(error)


def _num_starts(starts: Sequence[StreamStart]) -> int:
    """Return how many starts go into the next message."""
    num_tokens = 0
    for index, start in enumerate(starts):
        num_tokens += len(start.request.prompt_token_ids) + len(start.request.output_token_ids)
        if num_tokens > _MAX_TOKENS_PER_MESSAGE and index:
            return index
    return len(starts)
