"""The tokens of one generation, from as many decode nodes as it takes, without a gap and without a double."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from google.protobuf.duration_pb2 import Duration
from opentelemetry import trace

from baton import errors
from baton.gateway.cluster.attempt import Attempt, TakeTokens, ending_of, hashes_of
from baton.gateway.cluster.quarantine import Quarantine
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.generation.requests import GenerationState
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest, Finished
from baton.internal.v1.node_pb2 import Adapter as AdapterMessage
from baton.internal.v1.router_service_pb2 import Candidate, Placement, PlacementPin, PlaceRequest, PlaceResponse
from baton.rpc.status import GATEWAY_SILENT, PEER_SILENT, without_address
from baton.security.access import digest_of
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.generation_pb2 import SamplingParameters
from baton.wire.quantities import duration_from_seconds

log = logging.getLogger(__name__)

_WORTH_ANOTHER_NODE = (
    errors.AttemptReusedError,
    errors.MismatchError,
    errors.NonFiniteLogitsError,
    errors.OutOfMemoryError,
    errors.OverloadedError,
    errors.PassFailedError,
    errors.StreamBrokenError,
    errors.UnavailableError,
)
"""Failures of a node rather than of the request, as far as one attempt can tell."""

_SILENT_SECONDS = 2.0
"""Time for which no request goes to a node that a connection has found silent; by then the router knows."""

_SHORT_SECONDS = 0.1
"""Where the first token of a node that takes over is expected later, it gets the KV of what there is beforehand."""
_MOVE_PAUSE_SECONDS = 0.2
"""After a move that failed, until the next is tried."""
Follow: TypeAlias = Callable[[str, DecodeServiceGenerateRequest, Attempt], Awaitable[Finished | None]]
"""Generates on the node at host:port; returns its report at the end, or None if the tokens taken ended it."""


class TokenStreams:
    """Places generations and follows them from node to node."""

    def __init__(
        self,
        router: RouterClient,
        follow_on_node: Follow,
        metrics: Metrics,
        quarantine: Quarantine,
        *,
        max_attempts: int,
        token_timeout_seconds: float,
        request_timeout_seconds: float,
    ) -> None:
        self._router, self._follow_on_node = router, follow_on_node
        self._metrics, self._quarantine = metrics, quarantine
        self._max_attempts, self._token_timeout_seconds = max_attempts, token_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds
        self._silent_until: dict[str, float] = {}  # node, and when it may be asked again; event loop's time

    async def follow(self, generation: GenerationState, take: TakeTokens) -> Finished | None:
        """Run a generation to its end.

        `generation` is kept up to date here, so that the caller only reads it; `take` is told of every token, once, in
        order. Returns the end that a node reported, or that the tokens show; None if `take` ended it. Raises BatonError
        why the last attempt failed, or why the request was refused.
        """
        if self._quarantine.cases:
            self._quarantine.check(generation)
        clock = asyncio.get_running_loop().time
        progress_seconds = clock()
        while True:
            await self._place(generation)
            try:
                finished = await self._follow_on(generation, take)
                if self._quarantine.cases:
                    self._quarantine.clear(generation)
                return finished
            except _WORTH_ANOTHER_NODE as error:
                self._note_failure(generation, error)
                if (ending := ending_of(generation)) is not None:
                    return ending
                if len(generation.output_token_ids) > generation.num_resumed_tokens:
                    progress_seconds = clock()
                is_silence = error.reason in (PEER_SILENT, GATEWAY_SILENT)
                is_starved = is_silence and clock() < progress_seconds + self._token_timeout_seconds
                if not self._quarantine.judge(generation, error) or is_starved:
                    generation.num_free_attempts += 1
                if generation.num_attempts - generation.num_free_attempts >= self._max_attempts:
                    raise without_address(error, "the connection to the decode node failed") from None
                self._metrics.add(names.RETRIES, 1, {names.REASON: error.reason})

    async def _follow_on(
        self, generation: GenerationState, take: TakeTokens, on_first: Callable[[], None] | None = None
    ) -> Finished | None:
        """Follow an attempt to its end, or, where its node leaves, that of another node that takes over.

        `on_first` is called once the node, or one that takes over from it, has said a token.
        """
        placement, generation.num_resumed_tokens = generation.placement, len(generation.output_token_ids)
        assert placement is not None
        successor: asyncio.Task[Finished | None] | None = None
        context = contextvars.copy_context()  # its trace: the node tells of leaving in none

        def leave(attempt: Attempt) -> None:
            nonlocal successor
            if not generation.sampling.HasField("prompt_logprob_count") and successor is None:
                work = self._succeed(generation, take, attempt, on_first)
                successor = asyncio.create_task(work, context=context)

        try:
            request = self._request(generation, placement, generation.sampling)
            attempt = self._watch(generation, placement, generation.output_token_ids, take, leave, on_first)
            return await self._follow_on_node(placement.decode_address, request, attempt)
        except _WORTH_ANOTHER_NODE:
            if successor is None:
                raise
            return await successor
        finally:
            if successor is not None:
                successor.cancel()

    async def _succeed(
        self, generation: GenerationState, take: TakeTokens, old: Attempt, on_first: Callable[[], None] | None
    ) -> Finished | None:
        """Follow an attempt on another node while the old one goes on; its first token ends that."""
        assert generation.placement is not None
        leaving, problem = generation.placement.decode_node_id, ""

        def give_up_old() -> None:
            old.give_up()
            if on_first is not None:
                on_first()

        while True:
            placement: Placement | None = None
            try:
                output = list(generation.output_token_ids)  # what transfers are granted for
                placement = await self._place(generation)
                generation.num_free_attempts += 1
                if placement.decode_node_id != leaving or old.ended.done():  # one that is back has the same name
                    is_remote = placement.HasField("prefix_pull") or placement.prefill_node_id
                    if is_remote or placement.estimate.time_to_first_token_seconds > _SHORT_SECONDS:
                        await self._warm(generation, placement, output)
                    target = placement.decode_node_id
                    log.info("stream_moves generation=%s from=%s to=%s", generation.name, leaving, target)
                    return await self._follow_on(generation, take, give_up_old)
            except errors.BatonError as error:
                if old.ended.done():
                    raise
                if placement is not None:
                    self._note_failure(generation, error)
                elif error.message != problem:
                    problem = error.message
                    log.warning("move_failed generation=%s from=%s error=%r", generation.name, leaving, problem)
            await asyncio.sleep(_MOVE_PAUSE_SECONDS)

    async def _warm(self, generation: GenerationState, placement: Placement, output: list[int]) -> None:
        """Have a node get the KV of prompt and output, as the placement says; it goes on from its own cache then."""
        sampling = SamplingParameters(seed=0, max_token_count=len(output) + 1)
        request = self._request(generation, placement, sampling)
        request.output_token_ids[:] = output
        attempt = self._watch(generation, placement, output, lambda _token_ids, _logprobs: False)
        await self._follow_on_node(placement.decode_address, request, attempt)
        generation.num_attempts += 1
        generation.num_free_attempts += 1
        for field in ("placement_id", "prefill_node_id", "prefix_pull", "alternatives"):
            placement.ClearField(field)

    async def _place(self, generation: GenerationState) -> Placement:
        prompt, sampling, adapter = generation.prompt, generation.sampling, generation.prompt.adapter
        is_scored = sampling.HasField("prompt_logprob_count") and not generation.output_token_ids
        request = PlaceRequest(
            request_id=generation.name,
            model_id=prompt.model_id,
            adapter=AdapterMessage(name=adapter.name, digest=adapter.digest) if adapter else None,
            prompt_token_count=len(prompt.token_ids) + len(generation.output_token_ids),
            max_token_count=sampling.max_token_count - len(generation.output_token_ids),
            block_hashes=hashes_of(generation) if generation.output_token_ids else prompt.block_hashes,
            excluded_node_ids=dict.fromkeys((*generation.failed_node_ids, *self._silent_node_ids())),
            bypass_prefix_cache=prompt.request.bypass_prefix_cache or is_scored or generation.is_blamed,
            needs_local_prefill=is_scored or generation.is_suspect,
            pins=[PlacementPin(decode_node_id=pin[0], prefill_node_id=pin[1]) for pin in prompt.request.pins],
            tenant=generation.tenant,
            tenant_weight=generation.tenant_weight,
            ttft_objective=_duration(generation.objectives.ttft_seconds),
            tpot_objective=_duration(generation.objectives.tpot_seconds),
            is_admitted=generation.placement is not None,
            session=prompt.request.session,
            salt_digest=digest_of(prompt.request.cache_salt),
        )
        response = await self._router.place(request)
        if (max_tokens := response.placement.degraded_max_token_count) and max_tokens < sampling.max_token_count:
            generation.cut(max_tokens)
        generation.num_attempts += 1
        generation.placement = response.placement
        generation.num_expected_cached_tokens = _expected_cached_tokens(response)
        return response.placement

    def _request(
        self, generation: GenerationState, placement: Placement, sampling: SamplingParameters
    ) -> DecodeServiceGenerateRequest:
        prompt = generation.prompt
        return DecodeServiceGenerateRequest(
            request_id=generation.name,
            attempt=generation.num_attempts,
            model_id=prompt.model_id,
            adapter=prompt.adapter.name if prompt.adapter else "",
            model_revision_digest=prompt.model_revision_digest,
            prompt_token_ids=prompt.token_ids,
            output_token_ids=generation.output_token_ids,
            sampling=sampling,
            placement=placement,
            timeout=duration_from_seconds(self._seconds_left(generation)),
            cache_salt=prompt.request.cache_salt,
            priority=generation.priority,
            tenant=generation.tenant_id,
            tenant_weight=generation.tenant_weight,
            bypass_prefix_cache=prompt.request.bypass_prefix_cache or generation.is_blamed,
            is_suspect=generation.is_suspect,
            wants_kv_timeline=generation.wants_kv_timeline,
        )

    def _watch(
        self,
        generation: GenerationState,
        placement: Placement,
        output_token_ids: list[int],
        take: TakeTokens,
        on_leaving: Callable[[Attempt], None] | None = None,
        on_first: Callable[[], None] | None = None,
    ) -> Attempt:
        expected_seconds = placement.estimate.time_to_first_token_seconds
        return Attempt(
            output_token_ids,
            generation.prompt_logprobs,
            take,
            max_tokens=generation.sampling.max_token_count,
            first_token_timeout_seconds=self._token_timeout_seconds + 2 * expected_seconds,
            token_timeout_seconds=self._token_timeout_seconds,
            on_leaving=on_leaving,
            on_first=on_first,
        )

    def _silent_node_ids(self) -> Iterable[str]:
        """Return the nodes that fell silent a moment ago: the router finds out later."""
        now = asyncio.get_running_loop().time()
        self._silent_until = {node_id: until for node_id, until in self._silent_until.items() if now < until}
        return self._silent_until

    def _seconds_left(self, generation: GenerationState) -> float:
        limits = (self._request_timeout_seconds, generation.prompt.request.timeout_seconds)
        timeout_seconds = min(limit for limit in limits if limit is not None)
        return max(0.0, generation.begun_seconds + timeout_seconds - asyncio.get_running_loop().time())

    def _note_failure(self, generation: GenerationState, error: errors.BatonError) -> None:
        placement = generation.placement
        assert placement is not None
        if error.reason != GATEWAY_SILENT and placement.decode_node_id not in generation.failed_node_ids:
            generation.failed_node_ids.append(placement.decode_node_id)
        if error.reason == PEER_SILENT:
            self._silent_until[placement.decode_node_id] = asyncio.get_running_loop().time() + _SILENT_SECONDS
        log.warning(
            "attempt_failed generation=%s attempt=%d node=%s delivered_tokens=%d reason=%s error=%r",
            generation.name,
            generation.num_attempts,
            placement.decode_node_id,
            len(generation.output_token_ids),
            error.reason,
            error.message,
        )
        trace.get_current_span().add_event(
            names.EVENT_RETRY,
            {
                names.REASON: error.reason,
                names.ATTEMPT: generation.num_attempts,
                names.NODE_ID: placement.decode_node_id,
            },
        )


def _duration(seconds: float) -> Duration | None:
    """Return an objective as the router takes it; None: the router's own."""
    return duration_from_seconds(seconds) if seconds else None


def _expected_cached_tokens(response: PlaceResponse) -> int:
    chosen = response.placement

    def is_chosen(candidate: Candidate) -> bool:
        nodes = (candidate.decode_node_id, candidate.prefill_node_id, candidate.pull_node_id)
        return nodes == (chosen.decode_node_id, chosen.prefill_node_id, chosen.prefix_pull.node_id)

    counts = [
        max(candidate.decode_cached_token_count, candidate.prefill_cached_token_count) + candidate.pulled_token_count
        for candidate in response.candidates
        if is_chosen(candidate)
    ]
    return max(counts, default=0)
