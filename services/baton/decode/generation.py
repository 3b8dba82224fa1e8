"""One generation on this node: engine events in, tokens and the end out, a remote prefill beside them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry import trace

from baton.decode.kv_stream.block_pull import BlockPull, check_pull, pull_request
from baton.decode.kv_stream.clock import FrameTimeline
from baton.decode.kv_stream.reader import KvReceiver, Timeouts
from baton.decode.kv_stream.recovery import local_seconds, prefill_options
from baton.decode.kv_stream.remote_prefill import RemotePrefill
from baton.decode.peers import PeerSet
from baton.decode.summary import finished_message, measure_resources, outcome_of
from baton.engine.events import Admitted, Ended, EngineEvent, Failed, FrameLanded, PromptScored, TokenReady
from baton.engine.request import EngineRequest, Purpose
from baton.engine.sampling import SampledToken
from baton.errors import BatonError, InvalidFieldError, MismatchError
from baton.kv.stream import KvProgress
from baton.node.node import WorkerNode
from baton.node.requests import check_identity, check_priority, sampling_from_proto
from baton.telemetry import names
from baton.telemetry.metrics import Metrics, Side
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import prefill_service_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.durations import seconds_from_duration
from baton.wire.kv import layout_to_proto, wire_from_proto

log = logging.getLogger(__name__)


class GenerationSink(Protocol):
    """Takes what a generation says, on the event loop; must not block. After `finished` or `failed` nothing follows."""

    def prompt(self, position: int, tokens: Sequence[SampledToken]) -> None:
        """Take the log-probabilities of the prompt's next tokens, from a position on."""

    def token(self, output_index: int, token: SampledToken) -> None:
        """Take the next token."""

    def finished(self, finished: messages.Finished) -> None:
        """Take the end."""

    def failed(self, error: BatonError) -> None:
        """Take the failure."""


class DecodeGenerator:
    """Runs generations on a node's engine.

    Args:
        node: The engine and its place in the cluster.
        peers: Prefill nodes that may be called.
        timeouts: How long a silent KV stream is waited for.
        metrics: Where to count.
    """

    def __init__(self, node: WorkerNode, peers: PeerSet, timeouts: Timeouts, metrics: Metrics) -> None:
        self.node = node
        self.peers = peers
        self.timeouts = timeouts
        self.metrics = metrics

    def start(
        self, request: messages.DecodeServiceGenerateRequest, outlet: GenerationSink, tasks: asyncio.TaskGroup
    ) -> Generation:
        """Begin a generation; the span that is current is told of it.

        Args:
            request: What to generate.
            outlet: Who is told, from the next turn of the event loop on.
            tasks: Where its KV stream is received; no task outlives the generation.

        Raises:
            BatonError: If the request is refused at once; nothing of it is left then.
        """
        self.node.check_accepts()
        self._check(request)
        self.node.accept_placement(request.placement.placement_id)
        generation = Generation(self, request, outlet, tasks)
        generation.submit()
        return generation

    def _check(self, request: messages.DecodeServiceGenerateRequest) -> None:
        layout = self.node.runner.info.layout_with(request.adapter)
        digest = request.model_revision_digest
        if request.model_id != layout.model_id:
            raise MismatchError("model_id", layout.model_id, request.model_id, reason="MODEL_MISMATCH")
        if digest and digest != layout.model_revision_digest:
            raise MismatchError("model_revision_digest", layout.model_revision_digest, digest, reason="MODEL_MISMATCH")
        check_identity(request.request_id, request.attempt, request.cache_salt)
        check_priority(request.priority)
        if request.placement.prefill_node_id:
            wire_from_proto(request.placement, layout)
        if request.placement.HasField("prefix_pull"):
            check_pull(request.placement, layout)
        is_greedy = request.sampling.HasField("temperature") and request.sampling.temperature == 0
        if not is_greedy and not request.sampling.HasField("seed"):
            raise InvalidFieldError("sampling.seed", "expected a seed unless the temperature is 0")


class Generation:
    """The state of one request while it runs.

    Invariant: once it has told its outlet the end, or has been closed, it tells nothing and no task of it goes on.
    """

    def __init__(
        self,
        generator: DecodeGenerator,
        request: messages.DecodeServiceGenerateRequest,
        outlet: GenerationSink,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._generator = generator
        self._node = generator.node
        self._engine = generator.node.engine
        self._request = request
        self._request_id = f"{request.request_id}/{request.attempt}"
        self._outlet = outlet
        self._tasks = tasks
        self._context = contextvars.copy_context()
        self._span = trace.get_current_span()
        self._is_over = False
        self._handover: RemotePrefill | None = None
        self._pull: BlockPull | None = None
        self._compilation: asyncio.Task[None] | None = None
        self._reception: asyncio.Task[None] | None = None
        timeout_seconds = seconds_from_duration(request.timeout) if request.HasField("timeout") else None
        self._deadline = None if timeout_seconds is None else asyncio.get_running_loop().time() + timeout_seconds
        placement = request.placement
        self._prefill_node_id = placement.prefill_node_id if placement.prefill_node_id != self._node.node_id else ""
        self._layout = self._node.runner.info.layout_with(request.adapter)
        self._engine_request = self._make_engine_request()

    def submit(self) -> None:
        """Hand the request to the engine."""
        self._span.set_attributes(
            {
                names.REQUEST_ID: self._request.request_id,
                names.ATTEMPT: self._request.attempt,
                names.NODE_ID: self._node.node_id,
                names.PREFILL_NODE_ID: self._prefill_node_id or self._node.node_id,
                names.PROMPT_TOKENS: len(self._request.prompt_token_ids),
            }
        )
        if self._engine_request.params.structured_output is None:
            self._engine.submit(self._engine_request, self._take_event)
        else:
            self._compilation = self._begin(self._submit_compiled())

    def close(self) -> None:
        """Drop the request and everything that it holds, if it has not ended."""
        if not self._is_over:
            self._stop()
            self._engine.abort(self._engine_request)

    def _take_event(self, event: EngineEvent) -> None:
        if self._is_over:
            return
        if type(event) is TokenReady:
            self._outlet.token(event.output_index, event.token)
            return
        try:
            self._follow(event)
        except Exception:  # the edge of the request: other requests' events follow in the same turn
            log.exception("generation_failed request=%s", self._request_id)
            self.close()
            self._outlet.failed(BatonError("internal error of the decode node"))

    def _follow(self, event: EngineEvent) -> None:
        if isinstance(event, Admitted) and self._prefill_node_id:
            self._begin_handover(event.num_cached_tokens)
        elif isinstance(event, Admitted) and self._engine_request.purpose is Purpose.RECEIVE:
            self._begin_pull(event.num_cached_tokens)
        elif isinstance(event, FrameLanded) and (taker := self._pull or (self._handover and self._handover.receiver)):
            taker.frame_landed()
        elif isinstance(event, PromptScored):
            self._outlet.prompt(event.position, event.tokens)
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, Failed):
            self._generator.metrics.add_failure(event.error.reason)
            self._fail(event.error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Begin a task of the call; None if the call is ending, which will cancel this generation next."""
        try:
            return self._tasks.create_task(work, context=self._context)
        except RuntimeError:  # how a TaskGroup that shuts down says so
            work.close()
            return None

    def _fail(self, error: BatonError) -> None:
        self._stop()
        self._outlet.failed(error)

    def _stop(self) -> None:
        self._is_over = True
        tasks = (self._compilation, self._reception)
        self._compilation = self._reception = None  # a task that was cancelled keeps what it was doing
        for task in tasks:
            if task is not None:
                task.cancel()

    def _end(self, ended: Ended) -> None:
        summary = outcome_of(self._request, ended, self._handover, decode_node_id=self._node.node_id)
        if self._pull is not None:
            self._pull.describe(summary)
        reception = self._handover.receiver.reception if self._handover else None
        measure_resources(summary, reception, self._node.monitor)
        self._count(ended, summary)
        if summary.placement_id:
            self._node.registration.report_outcome(summary)
        self._stop()
        finished = finished_message(ended, summary, self._request)
        if reception is not None and reception.timeline is not None:
            finished.summary.kv_timeline.CopyFrom(reception.timeline.to_proto(reception.clock.computed))
        self._outlet.finished(finished)

    def _count(self, ended: Ended, summary: PlacementSummary) -> None:
        metrics = self._generator.metrics
        for _ in range(ended.num_preemptions):
            metrics.add_preemption()
        if self._handover and not self._handover.fallback_reason:
            reception = self._handover.receiver.reception
            metrics.add_kv_transfer(
                summary.kv_byte_count,
                reception.transport,
                transfer_seconds=reception.clock.busy_seconds,
                exposed_seconds=reception.clock.exposed_seconds,
            )
            side: Side = "prefill"
            num_cached = min(summary.prefill_cached_token_count, ended.num_prompt_tokens)
        else:
            side, num_cached = "decode", ended.num_cached_tokens
            num_received = summary.kv_kept_token_count + summary.pulled_token_count
            num_cached = min(num_cached + num_received, ended.num_prompt_tokens)
        num_computed = max(0, ended.num_prompt_tokens - num_cached - ended.num_shared_tokens)
        metrics.add_prompt(side, num_cached_tokens=num_cached, num_computed_tokens=num_computed)
        metrics.add_shared_prompt(ended.num_shared_tokens)

    def _make_engine_request(self) -> EngineRequest:
        request, params = self._request, sampling_from_proto(self._request.sampling)
        is_scored = params.num_prompt_logprobs is not None and not request.output_token_ids
        is_pulling = request.placement.HasField("prefix_pull") and not (request.bypass_prefix_cache or is_scored)
        return EngineRequest(
            request_id=self._request_id,
            prompt_token_ids=tuple(request.prompt_token_ids),
            output_token_ids=tuple(request.output_token_ids),
            params=params,
            purpose=Purpose.RECEIVE if self._prefill_node_id or is_pulling else Purpose.GENERATE,
            adapter=request.adapter,
            cache_salt=request.cache_salt,
            priority=request.priority,
            is_cache_bypassed=request.bypass_prefix_cache,
        )

    async def _submit_compiled(self) -> None:
        """Hand the request to the engine when the form of its output is compiled, off the event loop."""
        request = self._engine_request
        compiling = self._node.constraints.constraint(request.params.structured_output, request.output_token_ids)
        failure: BatonError | None = None
        try:
            self._engine_request = replace(request, constraint=await compiling)
        except BatonError as error:
            failure = error
        except Exception:  # the edge of the task: other requests share its group
            log.exception("compilation_failed request=%s", self._request_id)
            failure = BatonError("internal error of the decode node")
        self._compilation = None
        if failure is None:
            self._engine.submit(self._engine_request, self._take_event)
        else:
            self._fail(failure)

    def _begin_handover(self, num_cached_tokens: int) -> None:
        node, generator = self._node, self._generator
        request = self._prefill_request(num_cached_tokens)
        layout, num_tokens = self._layout, len(request.token_ids)
        progress = KvProgress.begin(layout, num_cached_tokens, num_tokens)
        receiver = KvReceiver(self._engine, self._request_id, progress, layout, generator.timeouts)
        if self._request.wants_kv_timeline:
            receiver.reception.timeline = FrameTimeline(receiver.reception.clock.called)
        self._handover = RemotePrefill(
            self._engine,
            generator.peers,
            receiver,
            request,
            prefill_options(self._request.placement, node.node_id),
            local_seconds=lambda start: local_seconds(node, min(start, num_tokens - 1), num_tokens),
            deadline=self._deadline,
            metrics=generator.metrics,
        )
        self._reception = self._begin(self._handover.run())

    def _begin_pull(self, num_cached_tokens: int) -> None:
        node, generator = self._node, self._generator
        num_tokens = len(self._request.prompt_token_ids) + len(self._request.output_token_ids)
        self._pull = BlockPull(
            self._engine,
            generator.peers,
            pull_request(self._request, node.runner, num_cached_tokens),
            self._request.placement.prefix_pull.node_id,
            generator.timeouts,
            engine_id=self._request_id,
            num_cached_tokens=num_cached_tokens,
            local_seconds=local_seconds(node, min(num_cached_tokens, num_tokens - 1), num_tokens),
            deadline=self._deadline,
            metrics=generator.metrics,
        )
        self._reception = self._begin(self._pull.run())

    def _prefill_request(self, num_cached_tokens: int) -> prefill_service_pb2.PrefillRequest:
        request = self._request
        return prefill_service_pb2.PrefillRequest(
            request_id=request.request_id,
            attempt=request.attempt,
            token_ids=[*request.prompt_token_ids, *request.output_token_ids],
            output_token_count=len(request.output_token_ids),
            kv_token_begin=num_cached_tokens,
            expected_layout=layout_to_proto(self._layout),
            adapter=request.adapter,
            sampling=request.sampling,
            layers_per_frame=request.placement.layers_per_frame,
            chunk_token_count=request.placement.chunk_token_count,
            wire_dtype=request.placement.wire_dtype,
            value_wire_dtype=request.placement.value_wire_dtype,
            cache_salt=request.cache_salt,
            priority=request.priority,
            bypass_prefix_cache=request.bypass_prefix_cache,
        )
