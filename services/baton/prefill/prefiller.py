"""Prefills: each from the request message to the messages of its KV stream, one stream of an attempt at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from opentelemetry import trace

from baton.capacity.prefix_reuse import MAX_FRAME_BYTES
from baton.engine.constraints.constraint import Constraint
from baton.engine.events import Failed
from baton.engine.request import EXPORT_TOKENS, EngineRequest, KvExportSpec, Purpose, SamplingParams
from baton.errors import AttemptReusedError, BatonError, InvalidFieldError, OutOfMemoryError, check_range
from baton.internal.v1 import prefill_service_pb2
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvFrame, KvProgress
from baton.kv_transport.kv_services import ReceivedRequest
from baton.node.node import WorkerNode
from baton.node.requests import check_request, sampling_from_proto
from baton.prefill.kv_stream import FrameExport, StreamMessages
from baton.prefill.outbox import FramePacker, Item, OutboxBudget
from baton.security.access import digest_of
from baton.telemetry import names
from baton.wire.kv import dtype_from_proto, layout_from_proto, wire_from_proto


class PromptSampling(NamedTuple):
    """How the tokens of a request are chosen."""

    params: SamplingParams
    constraint: Constraint | None
    """The form of its output, compiled; None: it has none."""


class Prefiller:
    """Runs prefills on a node's engine. `max_outbox_bytes`: of all; `max_prompt_bytes`: of one alone; None: any."""

    def __init__(self, node: WorkerNode, max_outbox_bytes: int, max_prompt_bytes: int | None = None) -> None:
        self._node = node
        self._max_prompt_bytes = max_prompt_bytes
        self._budget = OutboxBudget(max_outbox_bytes, lambda: node.engine.call(lambda: None))  # it looks again then
        self._layout = layout = node.runner.info.layout
        self._layer_token_bytes = max(spec.num_token_elements for spec in layout.layers) * layout.dtype.num_bytes
        """One position in the largest layer."""
        self.streams = AttemptStreams()
        """Those that run."""
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="kv-wire")

    async def compile(self, request: prefill_service_pb2.PrefillRequest) -> PromptSampling:
        """Return how tokens are chosen, the form compiled beside the event loop; raise BatonError if that fails."""
        params = sampling_from_proto(request.sampling)
        compiling = self._node.constraints.constraint(params.structured_output, _output_of(request))
        return PromptSampling(params, await compiling)

    def compile_blocking(self, request: prefill_service_pb2.PrefillRequest) -> PromptSampling:
        """Return the same as `compile`; blocks the calling thread. Raises BatonError if it cannot be enforced."""
        params = sampling_from_proto(request.sampling)
        form, constraints = params.structured_output, self._node.constraints
        return PromptSampling(params, constraints.constraint_blocking(form, _output_of(request)) if form else None)

    @contextmanager
    def begin(
        self, received: ReceivedRequest, sampling: PromptSampling, put: Callable[[Item], None]
    ) -> Iterator[StreamMessages]:
        """Submit a request to the engine; leaving the context ends its work.

        `put` is called from any thread. Raises OutOfMemoryError if the prompt's K and V have no room here, even alone,
        ForbiddenError if no router has granted the transfer, BatonError if the request is bad, the layouts differ, or a
        later stream of the attempt has come.
        """
        request = received.message
        self._node.check_accepts()
        layout = self._node.runner.info.layout_with(request.adapter)
        self._check(request, layout)
        receiver = dtype_from_proto(request.expected_layout.dtype, field="expected_layout.dtype")
        layout = replace(layout, wire=wire_from_proto(request, layout, receiver))
        owed = owed_of(request, self._layout)
        answer = self._node.transfers.check_asked(
            request.transfer,
            request_id=request.request_id,
            salt_digest=digest_of(request.cache_salt),
            token_count=len(request.token_ids),
            blocks_digest=b"",
        )
        self._check_has_room(owed.missing_bytes(self._layout))
        trace.get_current_span().set_attributes(
            {names.REQUEST_ID: request.request_id, names.ATTEMPT: request.attempt, names.NODE_ID: self._node.node_id}
        )
        share = self._budget.share(self._layout, owed.missing_bytes(self._layout))
        messages = StreamMessages(layout, received, owed, self._node.monitor, share.sent, answer)
        packer = FramePacker(self._node.runner.wire_codec, layout, self._lane, put)
        engine_request = self._engine_request(request, sampling, owed, packer.put_frame, share.may_begin)

        def end(error: BatonError) -> None:
            """Stop the engine's work for a stream, whose sender may hang in a write, and queue the error."""
            self._node.engine.abort(engine_request)
            share.close()
            messages.close()
            put(Failed(error))

        with self.streams.running(request, end):
            self._node.engine.submit(engine_request, put if layout.is_wire_lossless else packer.put_event)
            try:
                yield messages
            finally:
                messages.close()
                packer.close()
                self._node.engine.abort(engine_request)
                share.close()

    def _check(self, request: prefill_service_pb2.PrefillRequest, layout: KvLayout) -> None:
        expected = layout_from_proto(request.expected_layout, field="expected_layout")
        layout.check_matches(expected, is_converted=bool(request.wire_dtype))
        check_request(request, request.placement_id)
        num_tokens = len(request.token_ids)
        if not 0 <= request.kv_token_begin < max(1, num_tokens):
            raise InvalidFieldError("kv_token_begin", f"expected 0 to {num_tokens - 1}, got {request.kv_token_begin}")
        check_range("stream_number", request.stream_number, 0)
        if not 0 <= request.output_token_count < max(1, num_tokens):
            raise InvalidFieldError("output_token_count", f"expected 0 to {num_tokens - 1}")
        for name in ("layers_per_frame", "chunk_token_count"):
            check_range(name, getattr(request, name), 0)

    def _check_has_room(self, num_bytes: int) -> None:
        if self._max_prompt_bytes is not None and num_bytes > self._max_prompt_bytes:
            raise OutOfMemoryError(
                f"{num_bytes} bytes of K and V have no room on their way out: node {self._node.node_id}"
                f" has {self._max_prompt_bytes} for a prompt",
                reason="OUTBOX_TOO_SMALL",
            )

    def _engine_request(
        self,
        request: prefill_service_pb2.PrefillRequest,
        sampling: PromptSampling,
        owed: KvProgress,
        put: Callable[[KvFrame], None],
        may_begin: Callable[[], bool],
    ) -> EngineRequest:
        num_prompt = len(request.token_ids) - request.output_token_count
        return EngineRequest(
            request_id=f"{request.request_id}/{request.attempt}.{request.stream_number}",
            prompt_token_ids=tuple(request.token_ids[:num_prompt]),
            output_token_ids=tuple(request.token_ids[num_prompt:]),
            params=sampling.params,
            constraint=sampling.constraint,
            purpose=Purpose.PREFILL,
            adapter=request.adapter,
            cache_salt=request.cache_salt,
            priority=request.priority,
            is_cache_bypassed=request.bypass_prefix_cache,
            placement_id=request.placement_id,
            tenant=request.tenant,
            tenant_weight=max(1, request.tenant_weight),
            export=KvExportSpec(
                FrameExport(self._layout, owed, self._layers_per_frame(request), put),
                token_begin=request.kv_token_begin,
                chunk_tokens=self._chunk_tokens(request),
                may_begin=may_begin,
            ),
        )

    def _layers_per_frame(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(EXPORT_TOKENS, min(self._node.settings.max_step_tokens, self._chunk_tokens(request)))
        most_tokens = min(most_tokens, max(1, len(request.token_ids) - request.kv_token_begin))
        return max(1, min(request.layers_per_frame, MAX_FRAME_BYTES // (self._layer_token_bytes * most_tokens)))

    def _chunk_tokens(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(1, MAX_FRAME_BYTES // self._layer_token_bytes)
        return min(request.chunk_token_count or most_tokens, most_tokens)


def owed_of(request: prefill_service_pb2.PrefillRequest, layout: KvLayout) -> KvProgress:
    """Return what a stream has to bring; raise InvalidFieldError if its beginnings do not fit to prompt or layers."""
    num_tokens, begins = len(request.token_ids), tuple(request.layer_token_begins)
    if not begins:
        return KvProgress.begin(layout, request.kv_token_begin, num_tokens)
    if len(begins) != layout.num_layers or min(begins) != request.kv_token_begin or max(begins) > num_tokens:
        problem = f"expected {layout.num_layers} positions, the least {request.kv_token_begin}, none above {num_tokens}"
        raise InvalidFieldError("layer_token_begins", problem)
    return KvProgress(begins, num_tokens)


def _output_of(request: prefill_service_pb2.PrefillRequest) -> Sequence[int]:
    """Return the tokens that were generated before this prefill, which the form of the output has taken in."""
    return request.token_ids[len(request.token_ids) - request.output_token_count :]


class _Running(NamedTuple):
    stream_number: int
    end: Callable[[BatonError], None]


class AttemptStreams:
    """The running streams by attempt. Safe from any thread.

    Invariant: of one attempt the stream with the greatest number alone goes on; the caller has given up the others,
    although it may be long before their connections say so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], _Running] = {}

    def end_all(self, error: BatonError) -> None:
        """End those that run."""
        for each in list(self._running.values()):
            each.end(error)

    @contextmanager
    def running(self, request: prefill_service_pb2.PrefillRequest, end: Callable[[BatonError], None]) -> Iterator[None]:
        """Enter a stream for as long as the context lasts, and end that with a smaller number.

        `end` is called from any thread. Raises AttemptReusedError if one with this or a greater number runs.
        """
        attempt, running = (request.request_id, request.attempt), _Running(request.stream_number, end)
        with self._lock:
            other = self._running.get(attempt)
            if other is not None and other.stream_number >= running.stream_number:
                raise AttemptReusedError(
                    f"stream {other.stream_number} of {request.request_id}/{request.attempt} is running already"
                )
            self._running[attempt] = running
        if other is not None:
            other.end(AttemptReusedError(f"stream {running.stream_number} of the attempt has taken over"))
        try:
            yield
        finally:
            with self._lock:
                if self._running.get(attempt) is running:
                    del self._running[attempt]
