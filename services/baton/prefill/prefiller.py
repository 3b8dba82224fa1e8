"""One prefill: from the request message to the messages of its KV stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import NamedTuple

from opentelemetry import trace

from baton.engine.constraints.constraint import Constraint
from baton.engine.events import EngineEvent, Failed
from baton.engine.kv_cache.ingest import EXPORT_TOKENS
from baton.engine.request import StructuredOutput
from baton.engine.sequence import EngineRequest, Purpose
from baton.errors import BatonError, InvalidFieldError
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvFrame, KvProgress
from baton.kv_transport.kv_service import ReceivedRequest
from baton.node.node import WorkerNode
from baton.node.requests import check_identity, check_priority, sampling_from_proto
from baton.prefill.attempts import AttemptStreams
from baton.prefill.kv_stream import FrameExport, Message, StreamMessages
from baton.prefill.outbox import FramePacker, Item, Outbox, OutboxBudget
from baton.telemetry import names
from baton.v1 import prefill_service_pb2
from baton.wire.kv import dtype_from_proto, layout_from_proto, wire_from_proto

MAX_FRAME_BYTES = 16 << 20
"""Largest frame made; groups of layers, then chunks of positions, shrink to stay below it."""


class StreamSink(NamedTuple):
    """Where the parts of a KV stream go before they are sent."""

    put: Callable[[Item], None]
    """Takes frames, and events where frames are packed first; called from any thread."""
    put_event: Callable[[EngineEvent], None]
    """Takes the engine's events; called from the event loop, after the frames that came before."""
    end: Callable[[BatonError], None]
    """Ends the stream with an error; called from any thread."""


class Prefiller:
    """Runs prefills on a node's engine.

    Args:
        node: The engine and its place in the cluster.
        max_outbox_bytes: Bound of what waits to be sent, over all streams.
    """

    def __init__(self, node: WorkerNode, max_outbox_bytes: int) -> None:
        self._node = node
        self._budget = OutboxBudget(max_outbox_bytes, lambda: node.engine.call(lambda: None))  # it looks again then
        self._layout = node.runner.info.layout
        self._streams = AttemptStreams()
        self._lane = ThreadPoolExecutor(1, thread_name_prefix="kv-wire")

    async def run(self, received: ReceivedRequest) -> AsyncIterator[Message]:
        """Yield the messages of a KV stream: layout, frames and first token, summary.

        Raises:
            BatonError: If the request is bad, the layouts differ, or the engine cannot take it.
        """
        loop, outbox = asyncio.get_running_loop(), Outbox()

        def put(item: Item) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(outbox.put, item)

        def end(error: BatonError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(outbox.put, Failed(error))

        structured_output, output_token_ids = self._form(received.message)
        constraint = await self._node.constraints.constraint(structured_output, output_token_ids)
        sink = StreamSink(put, outbox.put, end)
        with closing(outbox), self.begin(received, constraint, sink) as messages:
            has_offer = received.message.HasField("shared_memory")
            yield await asyncio.to_thread(messages.layout) if has_offer else messages.layout()
            while not messages.is_complete:
                item = await outbox.get()
                if messages.shares_memory and isinstance(item, KvFrame):
                    yield await asyncio.to_thread(next, messages.of(item))
                    continue
                for message in messages.of(item):
                    yield message

    def compile(self, request: prefill_service_pb2.PrefillRequest) -> Constraint | None:
        """Compile the form of a request's output, if it has one; blocks the calling thread.

        Raises:
            BatonError: If it cannot be enforced.
        """
        structured_output, output_token_ids = self._form(request)
        return self._node.constraints.constraint_blocking(structured_output, output_token_ids)

    @contextmanager
    def begin(
        self, received: ReceivedRequest, constraint: Constraint | None, sink: StreamSink
    ) -> Iterator[StreamMessages]:
        """Submit a request to the engine; leaving the context ends its work.

        Args:
            received: The prompt.
            constraint: The form of the output, compiled.
            sink: Takes what is to be sent.

        Raises:
            BatonError: If the request is bad, the layouts differ, or a later stream of the attempt has come.
        """
        request = received.message
        self._node.check_accepts()
        layout = self._node.runner.info.layout_with(request.adapter)
        self._check(request, layout)
        receiver = dtype_from_proto(request.expected_layout.dtype, field="expected_layout.dtype")
        layout = replace(layout, wire=wire_from_proto(request, layout, receiver))
        owed = owed_of(request, self._layout)
        trace.get_current_span().set_attributes(
            {names.REQUEST_ID: request.request_id, names.ATTEMPT: request.attempt, names.NODE_ID: self._node.node_id}
        )
        share = self._budget.share(self._layout, owed.missing_bytes(self._layout))
        messages = StreamMessages(layout, received, owed, self._node.monitor, share.sent)
        packer = FramePacker(self._node.runner.wire_codec, layout, self._lane, sink.put)
        engine_request = self._engine_request(request, constraint, owed, packer.put_frame, share.may_begin)

        def end(error: BatonError) -> None:
            """Stop working for a stream that may hang in a write, and tell it so."""
            self._node.engine.abort(engine_request)
            share.close()
            messages.close()
            sink.end(error)

        with self._streams.running(request, end):
            self._node.engine.submit(engine_request, sink.put_event if layout.is_wire_lossless else packer.put_event)
            try:
                yield messages
            finally:
                messages.close()
                packer.close()
                self._node.engine.abort(engine_request)
                share.close()

    def _form(self, request: prefill_service_pb2.PrefillRequest) -> tuple[StructuredOutput | None, Sequence[int]]:
        num_prompt = len(request.token_ids) - request.output_token_count
        return sampling_from_proto(request.sampling).structured_output, request.token_ids[num_prompt:]

    def _check(self, request: prefill_service_pb2.PrefillRequest, layout: KvLayout) -> None:
        expected = layout_from_proto(request.expected_layout, field="expected_layout")
        layout.check_matches(expected, is_converted=bool(request.wire_dtype))
        check_identity(request.request_id, request.attempt, request.cache_salt)
        check_priority(request.priority)
        num_tokens = len(request.token_ids)
        if not 0 <= request.kv_token_begin < max(1, num_tokens):
            raise InvalidFieldError("kv_token_begin", f"expected 0 to {num_tokens - 1}, got {request.kv_token_begin}")
        if request.stream_number < 0:
            raise InvalidFieldError("stream_number", f"expected 0 or more, got {request.stream_number}")
        if not 0 <= request.output_token_count < max(1, num_tokens):
            raise InvalidFieldError("output_token_count", f"expected 0 to {num_tokens - 1}")
        for name in ("layers_per_frame", "chunk_token_count"):
            if getattr(request, name) < 0:
                raise InvalidFieldError(name, f"expected 0 or more, got {getattr(request, name)}")

    def _engine_request(
        self,
        request: prefill_service_pb2.PrefillRequest,
        constraint: Constraint | None,
        owed: KvProgress,
        put: Callable[[KvFrame], None],
        may_begin: Callable[[], bool],
    ) -> EngineRequest:
        num_prompt = len(request.token_ids) - request.output_token_count
        return EngineRequest(
            request_id=f"{request.request_id}/{request.attempt}.{request.stream_number}",
            prompt_token_ids=tuple(request.token_ids[:num_prompt]),
            output_token_ids=tuple(request.token_ids[num_prompt:]),
            params=sampling_from_proto(request.sampling),
            constraint=constraint,
            purpose=Purpose.PREFILL,
            adapter=request.adapter,
            cache_salt=request.cache_salt,
            priority=request.priority,
            is_cache_bypassed=request.bypass_prefix_cache,
            kv_token_begin=request.kv_token_begin,
            export=FrameExport(self._layout, owed, self._layers_per_frame(request), put),
            may_begin=may_begin,
            chunk_tokens=self._chunk_tokens(request),
        )

    def _layers_per_frame(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(EXPORT_TOKENS, min(self._node.settings.max_step_tokens, self._chunk_tokens(request)))
        most_tokens = min(most_tokens, max(1, len(request.token_ids) - request.kv_token_begin))
        return max(1, min(request.layers_per_frame, MAX_FRAME_BYTES // (self._layer_token_bytes * most_tokens)))

    def _chunk_tokens(self, request: prefill_service_pb2.PrefillRequest) -> int:
        most_tokens = max(1, MAX_FRAME_BYTES // self._layer_token_bytes)
        return min(request.chunk_token_count or most_tokens, most_tokens)

    @property
    def _layer_token_bytes(self) -> int:
        """Return the bytes of one position in the largest layer."""
        return max(spec.num_token_elements for spec in self._layout.layers) * self._layout.dtype.num_bytes


def owed_of(request: prefill_service_pb2.PrefillRequest, layout: KvLayout) -> KvProgress:
    """Return what a stream has to bring.

    Raises:
        InvalidFieldError: If the begins of the layers do not fit to the prompt, or to each other.
    """
    num_tokens, begins = len(request.token_ids), tuple(request.layer_token_begins)
    if not begins:
        return KvProgress.begin(layout, request.kv_token_begin, num_tokens)
    if len(begins) != layout.num_layers or min(begins) != request.kv_token_begin or max(begins) > num_tokens:
        problem = f"expected {layout.num_layers} positions, the least {request.kv_token_begin}, none above {num_tokens}"
        raise InvalidFieldError("layer_token_begins", problem)
    return KvProgress(begins, num_tokens)
