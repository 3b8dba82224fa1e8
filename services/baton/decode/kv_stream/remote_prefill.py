"""Brings the KV of one prompt here: by a stream, by others where it breaks, and at last by computing the rest."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from opentelemetry import trace

from baton.decode.kv_stream.prefill_source import KvSource
from baton.decode.kv_stream.reader import KvReceiver, SilentStreamError, reason_of
from baton.decode.kv_stream.recovery import Broken, PrefillOption, Recovery, choose_option
from baton.engine.engine import Engine
from baton.errors import AttemptReusedError, BatonError, StreamBrokenError, UnavailableError
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.tracing import tracer
from baton.v1 import prefill_service_pb2

log = logging.getLogger(__name__)

_LOCAL_MARGIN = 1.5
"""Times as long as expected that computing the rest here may take, where a deadline is near."""


class PrefillNodes(Protocol):
    """Knows the prefill nodes; `baton.decode.peers.PeerSet` is one."""

    def source(self, node_id: str) -> KvSource:
        """Return where to take KV from that a node computes.

        Raises:
            NotFoundError: If it is not known.
        """

    def has(self, node_id: str) -> bool:
        """Return whether a node is known."""


class RemotePrefill:
    """Takes the KV of one request from prefill nodes.

    Invariant: when `run` has returned, the engine has been told either that the KV is complete or how much of it is.

    Args:
        engine: Where the request waits for its KV.
        nodes: Whom to call.
        receiver: Takes the streams.
        request: What the first stream is asked for.
        options: The node that the router chose, then its alternatives.
        local_seconds: Returns the time to compute here the positions from one on.
        deadline: Event loop's time at which the caller gives the request up; None: never.
        metrics: Where to count.
    """

    def __init__(
        self,
        engine: Engine,
        nodes: PrefillNodes,
        receiver: KvReceiver,
        request: prefill_service_pb2.PrefillRequest,
        options: Sequence[PrefillOption],
        *,
        local_seconds: Callable[[int], float],
        deadline: float | None,
        metrics: Metrics,
    ) -> None:
        self.receiver = receiver
        self.break_reasons: list[str] = []
        """Why each stream broke."""
        self.node_id = options[0].node_id
        """Node of the last stream."""
        self.fallback_reason = ""
        """Why the rest was computed here; empty if it was not."""
        self._engine = engine
        self._nodes = nodes
        self._request = request
        self._engine_id = receiver.request_id
        self._options = options
        self._local_seconds = local_seconds
        self._deadline = deadline
        self._metrics = metrics
        self._streams: Counter[str] = Counter()
        self._num_kept_tokens = 0

    @property
    def num_resumes(self) -> int:
        """Return the streams after the first."""
        return max(0, self._streams.total() - 1)

    @property
    def num_kept_tokens(self) -> int:
        """Return the positions that were complete when the last stream broke; 0 if none did."""
        return self._num_kept_tokens

    async def run(self) -> None:
        """Take the KV, whatever happens to the nodes that compute it."""
        option: PrefillOption | None = self._options[0]
        while option is not None:
            try:
                await self._stream(option)
                return
            except BatonError as error:  # not kept: its traceback keeps what the stream has received
                option = self._after(option, error)
            except Exception as error:  # the edge of the stream: the request must not hang on a bug in it
                log.exception("reception_failed request=%s", self._engine_id)
                option = self._after(option, error)

    async def _stream(self, option: PrefillOption) -> None:
        self.node_id = option.node_id
        number = self._streams.total()
        self._streams[option.node_id] += 1
        source = self._nodes.source(option.node_id)
        attributes: dict[str, str | int] = {
            names.CACHED_TOKENS: self._request.kv_token_begin,
            names.PREFILL_NODE_ID: option.node_id,
            names.STREAM_NUMBER: number,
        }
        with tracer().start_as_current_span(names.SPAN_RECEIVE_KV, attributes=attributes):
            async with self._within_deadline():
                await self.receiver.run(source, self._request_for(option, number))

    def _request_for(self, option: PrefillOption, number: int) -> prefill_service_pb2.PrefillRequest:
        """Return the request of a stream: the first one's, less what has come."""
        request = prefill_service_pb2.PrefillRequest()
        request.CopyFrom(self._request)
        request.layers_per_frame = option.layers_per_frame
        request.chunk_token_count = option.chunk_tokens
        request.wire_dtype = option.wire_dtype  # type: ignore[assignment]
        request.value_wire_dtype = option.value_wire_dtype  # type: ignore[assignment]
        progress = self.receiver.progress
        request.stream_number = number
        request.kv_token_begin = min(progress.complete_tokens, progress.num_tokens - 1)
        if not progress.is_even:
            request.layer_token_begins.extend(progress.next_tokens)
        return request

    def _after(self, option: PrefillOption, error: Exception) -> PrefillOption | None:
        """Take note of a broken stream; return who is asked next."""
        reason = reason_of(error) if isinstance(error, BatonError) else "INTERNAL"
        progress = self.receiver.progress
        self.break_reasons.append(reason)
        self._num_kept_tokens = progress.complete_tokens - self._request.kv_token_begin
        if progress.is_complete and self.receiver.has_first_token:
            self._note(option, error, reason, Recovery.COMPLETE)
            self.receiver.commit()
            return None
        following = self._choose(option, error)
        if following is not None:
            is_same = following.node_id == option.node_id
            self._note(option, error, reason, Recovery.SAME_NODE if is_same else Recovery.OTHER_NODE)
            return following
        self._note(option, error, reason, Recovery.LOCAL)
        self.fallback_reason = reason
        self._metrics.add_fallback(reason)
        trace.get_current_span().add_event(names.EVENT_FALLBACK, {names.REASON: reason})
        self._engine.fall_back(self._engine_id, progress.complete_tokens)
        return None

    def _choose(self, option: PrefillOption, error: Exception) -> PrefillOption | None:
        progress = self.receiver.progress
        if progress.is_complete:  # the first token alone is missing: one position computed here gives it
            return None
        broken = Broken(
            option=option,
            is_node_in_doubt=isinstance(error, UnavailableError),
            is_node_unfit=not (_may_ask_again(error) and self._nodes.has(option.node_id)),
            num_streams_by_node=dict(self._streams),
            progress=progress,
            token_begin=self._request.kv_token_begin,
            has_first_token=self.receiver.has_first_token,
            is_cache_bypassed=self._request.bypass_prefix_cache,
        )
        return choose_option(
            broken,
            [other for other in self._options[1:] if self._nodes.has(other.node_id)],
            local_seconds=self._local_seconds(progress.complete_tokens),
            seconds_left=self._seconds_left(),
        )

    def _note(self, option: PrefillOption, error: Exception, reason: str, recovery: Recovery) -> None:
        log.warning(
            "kv_stream_broke request=%s prefill_node=%s reason=%s recovery=%s kept_tokens=%d cause=%s",
            self._engine_id,
            option.node_id,
            reason,
            recovery.value,
            self._num_kept_tokens,
            error,
        )
        attributes = {names.REASON: reason, names.RECOVERY: recovery.value, names.PREFILL_NODE_ID: option.node_id}
        trace.get_current_span().add_event(names.EVENT_KV_BROKEN, attributes)
        self._metrics.add_kv_break(reason, recovery.value)

    def _seconds_left(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()

    def _within_deadline(self) -> AbstractAsyncContextManager[object]:
        """Return a context that breaks the stream while there is still time to compute what is missing here."""
        if self._deadline is None:
            return nullcontext()
        return _DeadlineGuard(self._deadline, self._rest_seconds)

    def _rest_seconds(self) -> float:
        return _LOCAL_MARGIN * self._local_seconds(self.receiver.progress.complete_tokens)


class _DeadlineGuard:
    """Breaks a stream at the last moment at which the rest can still be computed here, seen from how far it is then.

    Where that moment has passed already, the stream is the only hope, and goes on.
    """

    def __init__(self, deadline: float, rest_seconds: Callable[[], float]) -> None:
        self._deadline = deadline
        self._rest_seconds = rest_seconds
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        loop = asyncio.get_running_loop()
        at = self._deadline - self._rest_seconds()
        if at > loop.time():
            self._timer = loop.call_at(at, self._look)

    async def __aexit__(self, *error: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._timeout.__aexit__(*error)  # type: ignore[arg-type]
        except TimeoutError:
            raise SilentStreamError(
                "the stream left no more time than the rest takes here", reason="DEADLINE"
            ) from None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        at = self._deadline - self._rest_seconds()
        if at > loop.time():
            self._timer = loop.call_at(at, self._look)
        else:
            self._timer = None
            self._timeout.reschedule(loop.time())


def _may_ask_again(error: Exception) -> bool:
    """Return whether the node that gave the error may well serve another stream of the request."""
    if isinstance(error, SilentStreamError):
        return False
    if isinstance(error, UnavailableError):
        return error.reason not in ("DRAINING", "CONNECT_FAILED", "REFUSED", "NOT_OFFERED")
    is_plain = type(error) is BatonError
    return is_plain or isinstance(error, StreamBrokenError | AttemptReusedError) or not isinstance(error, BatonError)
