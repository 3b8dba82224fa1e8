"""One generation on this node: engine events come in, tokens and the end go out, KV arrives beside them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry import trace

from baton.decode.kv_stream.block_pull import BlockPull, check_pull
from baton.decode.kv_stream.reader import Timeouts
from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.kv_stream.remote_prefill import RemotePrefill
from baton.decode.measurement import Reception, count_prompt, finished_message, local_summary, measure_resources
from baton.decode.peers import PeerSet
from baton.engine.events import Admitted, Ended, EngineEvent, Failed, FrameLanded, Isolated, PromptScored, TokenReady
from baton.engine.request import EngineRequest, Purpose, SamplingParams
from baton.engine.sampling import SampledToken
from baton.errors import BatonError, InvalidFieldError, MismatchError
from baton.internal.v1 import decode_service_pb2 as messages
from baton.node.node import WorkerNode
from baton.node.requests import check_request, sampling_from_proto
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.kv import wire_from_proto
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)


class GenerationSink(Protocol):
    """Takes what a generation says, on the event loop; must not block. After `finished` or `failed` nothing follows."""

    def prompt(self, position: int, tokens: Sequence[SampledToken]) -> None:
        """Take the log-probabilities of the prompt's next tokens, from a position on."""

    def token(self, output_index: int, token: SampledToken) -> None:
        """Take the next token."""

    def isolated(self, isolated: Isolated) -> None:
        """Take that the next pass is the generation's alone, or is not."""

    def finished(self, finished: messages.Finished) -> None:
        """Take the end."""

    def failed(self, error: BatonError) -> None:
        """Take the failure."""


class DecodeGenerator:
    """Runs generations on a node's engine. `budget` is memory for KV that arrives."""

    def __init__(
        self, node: WorkerNode, peers: PeerSet, timeouts: Timeouts, metrics: Metrics, budget: ReceiveBudget
    ) -> None:
        self.node, self.peers, self.budget = node, peers, budget
        self.timeouts, self.metrics = timeouts, metrics

    def start(
        self, request: messages.DecodeServiceGenerateRequest, sink: GenerationSink, tasks: asyncio.TaskGroup
    ) -> Generation:
        """Begin a generation; the span that is current is told of it.

        The KV stream is received in `tasks`, and `sink` is told from the next turn of the event loop on; no task
        outlives the generation. Raises BatonError if the request is refused at once; nothing of it is left then.
        """
        self.node.check_accepts()
        generation = Generation(self, request, self._checked_sampling(request), sink, tasks)
        generation.submit()
        return generation

    def _checked_sampling(self, request: messages.DecodeServiceGenerateRequest) -> SamplingParams:
        """Check the request and return its sampling parameters; the engine checks their bounds."""
        layout = self.node.runner.info.layout_with(request.adapter)
        digest = request.model_revision_digest
        if request.model_id != layout.model_id:
            raise MismatchError("model_id", layout.model_id, request.model_id, reason="MODEL_MISMATCH")
        if digest and digest != layout.model_revision_digest:
            raise MismatchError("model_revision_digest", layout.model_revision_digest, digest, reason="MODEL_MISMATCH")
        check_request(request, request.placement.placement_id)
        params = sampling_from_proto(request.sampling)
        placement = request.placement
        if placement.HasField("prefix_pull"):
            check_pull(placement)
            wire_from_proto(placement.prefix_pull, layout)
        if placement.prefill_node_id:
            wire_from_proto(placement, layout)
        is_greedy = request.sampling.HasField("temperature") and request.sampling.temperature == 0
        if not is_greedy and not request.sampling.HasField("seed"):
            raise InvalidFieldError("sampling.seed", "expected a seed unless the temperature is 0")
        return params


class Generation:
    """A running request's state. After it has told its sink the end, or was closed, nothing of it goes on."""

    def __init__(
        self,
        generator: DecodeGenerator,
        request: messages.DecodeServiceGenerateRequest,
        params: SamplingParams,
        sink: GenerationSink,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._generator = generator
        self._node = generator.node
        self._engine = generator.node.engine
        self._request = request
        self._request_id = f"{request.request_id}/{request.attempt}"
        self._sink, self._tasks = sink, tasks
        self._context = contextvars.copy_context()
        self._span = trace.get_current_span()
        self._is_over = False
        self._arrival: RemotePrefill | BlockPull | None = None
        self._compilation: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None
        timeout_seconds = seconds_from_duration(request.timeout) if request.HasField("timeout") else None
        self._deadline = None if timeout_seconds is None else asyncio.get_running_loop().time() + timeout_seconds
        placement = request.placement
        self._prefill_node_id = placement.prefill_node_id if placement.prefill_node_id != self._node.node_id else ""
        self._engine_request = self._make_engine_request(params)

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
            self._report_cut()

    def _take_event(self, event: EngineEvent) -> None:
        if self._is_over:
            if isinstance(event, Isolated):  # the engine waits, and all who share it
                event.told()
            return
        if type(event) is TokenReady:
            self._sink.token(event.output_index, event.token)
            return
        try:
            self._follow(event)
        except Exception:  # the edge of the request: other requests' events follow in the same turn
            log.exception("generation_failed request=%s", self._request_id)
            self.close()
            self._sink.failed(BatonError("internal error of the decode node"))

    def _follow(self, event: EngineEvent) -> None:
        if isinstance(event, Admitted) and self._engine_request.purpose is Purpose.RECEIVE:
            self._receive(event)
        elif isinstance(event, FrameLanded) and self._arrival is not None:
            self._arrival.frame_landed()
        elif isinstance(event, Isolated):
            self._sink.isolated(event)
        elif isinstance(event, PromptScored):
            self._sink.prompt(event.position, event.tokens)
        elif isinstance(event, Ended):
            self._end(event)
        elif isinstance(event, Failed):
            self._generator.metrics.add(names.FAILURES, 1, {names.REASON: event.error.reason})
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
        self._report_cut()
        self._sink.failed(error)

    def _stop(self) -> None:
        self._is_over = True
        tasks = (self._compilation, self._receiving)
        self._compilation = self._receiving = None  # a task that was cancelled keeps what it was doing
        if self._arrival is not None:
            self._arrival.close()
        for task in tasks:
            if task is not None:
                task.cancel()

    def _end(self, ended: Ended) -> None:
        summary = local_summary(self._request, ended, self._node.node_id)
        reception: Reception | None = None
        if self._arrival is not None:
            self._arrival.describe(summary)
            reception = self._arrival.reception
        measure_resources(summary, reception, self._node.monitor)
        count_prompt(self._generator.metrics, ended, summary, reception)
        if summary.placement_id:
            self._node.registration.report_outcome(summary)
        self._stop()
        self._sink.finished(finished_message(ended, summary, self._request, reception))

    def _report_cut(self) -> None:
        """Tell routers that a placement is over without a measurement: a stop string, a client that left, a failure."""
        if placement_id := self._request.placement.placement_id:
            summary = PlacementSummary(placement_id=placement_id, decode_node_id=self._node.node_id)
            self._node.registration.report_outcome(summary)

    def _make_engine_request(self, params: SamplingParams) -> EngineRequest:
        request = self._request
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
            is_suspect=request.is_suspect,
            placement_id=request.placement.placement_id,
            tenant=request.tenant,
            tenant_weight=max(1, request.tenant_weight),
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

    def _receive(self, admitted: Admitted) -> None:
        """Have the prompt's KV brought here, as the request's placement says."""
        generator, arrival = self._generator, RemotePrefill if self._prefill_node_id else BlockPull
        self._arrival = arrival(
            self._node,
            generator.peers,
            self._request,
            self._request_id,
            admitted,
            budget=generator.budget,
            timeouts=generator.timeouts,
            deadline=self._deadline,
            metrics=generator.metrics,
        )
        self._receiving = self._begin(self._arrival.run())
