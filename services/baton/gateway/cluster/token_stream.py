"""The tokens of one generation, from as many decode nodes as it takes, without a gap and without a double."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from opentelemetry import trace

from baton.errors import (
    AttemptReusedError,
    BatonError,
    MismatchError,
    OutOfMemoryError,
    OverloadedError,
    StreamBrokenError,
    UnavailableError,
)
from baton.gateway.cluster.decode_call import Attempt, Take
from baton.gateway.cluster.node_links import NodeLinks
from baton.gateway.cluster.router_client import RouterClient
from baton.gateway.generation.requests import PreparedPrompt
from baton.kv.adapter import Adapter
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.decode_service_pb2 import DecodeServiceGenerateRequest, Finished
from baton.v1.generation_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    PlacementSummary,
    SamplingParameters,
    TokenLogprob,
    Usage,
)
from baton.v1.node_pb2 import Adapter as AdapterMessage
from baton.v1.router_service_pb2 import Candidate, Placement, PlacementPin, PlaceRequest, PlaceResponse
from baton.wire.quantities import duration_from_seconds

log = logging.getLogger(__name__)

_WORTH_ANOTHER_NODE = (
    AttemptReusedError,
    MismatchError,
    OutOfMemoryError,
    OverloadedError,
    StreamBrokenError,
    UnavailableError,
)
"""Failures of a node rather than of the request."""


@dataclass(slots=True)
class TokenProgress:
    """What a generation has come to; outlives its attempts."""

    output_token_ids: list[int] = field(default_factory=list)
    """Tokens delivered."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt from its second token on, if they are wanted."""
    failed_node_ids: list[str] = field(default_factory=list)
    """Nodes on which an attempt failed."""
    num_attempts: int = 0
    """Attempts begun."""
    placement: Placement | None = None
    """Of the last attempt."""
    num_expected_cached_tokens: int = 0
    """Prompt tokens that the router expected in a prefix cache of the last placement."""
    begun_seconds: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """Event loop's time at which the generation began."""
    wants_kv_timeline: bool = False
    """Whether the node shall tell when each KV frame came."""


class TokenStreams:
    """Places generations and follows them from node to node."""

    def __init__(
        self,
        router: RouterClient,
        links: NodeLinks,
        metrics: Metrics,
        *,
        max_attempts: int,
        token_timeout_seconds: float,
        request_timeout_seconds: float,
    ) -> None:
        self._router = router
        self._links = links
        self._metrics = metrics
        self._max_attempts = max_attempts
        self._token_timeout_seconds = token_timeout_seconds
        self._request_timeout_seconds = request_timeout_seconds

    async def follow(
        self,
        prompt: PreparedPrompt,
        generation_id: str,
        sampling: SamplingParameters,
        progress: TokenProgress,
        take: Take,
    ) -> Finished | None:
        """Run a generation to its end.

        Args:
            prompt: What to continue.
            generation_id: Unique name of the generation.
            sampling: How tokens are chosen, seed and limit set.
            progress: Kept up to date here; the caller only reads it.
            take: Told of every token, once and in order, as they come.

        Returns:
            The end that a node reported, or that the tokens show; None if `take` ended it.

        Raises:
            BatonError: Why the last attempt failed, or why the request was refused.
        """
        while True:
            placement = await self._place(prompt, generation_id, sampling, progress)
            try:
                return await self._attempt(prompt, generation_id, sampling, progress, take)
            except _WORTH_ANOTHER_NODE as error:
                self._note_failure(generation_id, placement, progress, error)
                if (ending := _ending(prompt, sampling, progress)) is not None:
                    return ending
                if progress.num_attempts >= self._max_attempts:
                    raise
                self._metrics.add_retry(error.reason)

    async def _place(
        self, prompt: PreparedPrompt, generation_id: str, sampling: SamplingParameters, progress: TokenProgress
    ) -> Placement:
        is_scored = sampling.HasField("prompt_logprob_count") and not progress.output_token_ids
        request = PlaceRequest(
            request_id=generation_id,
            model_id=prompt.model_id,
            adapter=_adapter_message(prompt.adapter),
            prompt_token_count=len(prompt.token_ids) + len(progress.output_token_ids),
            max_token_count=sampling.max_token_count - len(progress.output_token_ids),
            block_hashes=prompt.block_hashes,
            excluded_node_ids=progress.failed_node_ids,
            bypass_prefix_cache=prompt.request.bypass_prefix_cache or is_scored,
            needs_local_prefill=is_scored,
            pins=[PlacementPin(decode_node_id=pin[0], prefill_node_id=pin[1]) for pin in prompt.request.pins],
        )
        response = await self._router.place(request)
        progress.num_attempts += 1
        progress.placement = response.placement
        progress.num_expected_cached_tokens = _expected_cached_tokens(response)
        return response.placement

    async def _attempt(
        self,
        prompt: PreparedPrompt,
        generation_id: str,
        sampling: SamplingParameters,
        progress: TokenProgress,
        take: Take,
    ) -> Finished | None:
        placement = progress.placement
        assert placement is not None
        request = DecodeServiceGenerateRequest(
            request_id=generation_id,
            attempt=progress.num_attempts,
            model_id=prompt.model_id,
            adapter=prompt.adapter.name if prompt.adapter else "",
            model_revision_digest=prompt.model_revision_digest,
            prompt_token_ids=prompt.token_ids,
            output_token_ids=progress.output_token_ids,
            sampling=sampling,
            placement=placement,
            timeout=duration_from_seconds(self._seconds_left(prompt, progress)),
            cache_salt=prompt.request.cache_salt,
            priority=prompt.request.priority,
            bypass_prefix_cache=prompt.request.bypass_prefix_cache,
            wants_kv_timeline=progress.wants_kv_timeline,
        )

        def make_attempt() -> Attempt:
            expected_seconds = placement.estimate.time_to_first_token_seconds
            return Attempt(
                progress.output_token_ids,
                progress.prompt_logprobs,
                take,
                max_tokens=sampling.max_token_count,
                first_token_timeout_seconds=self._token_timeout_seconds + 2 * expected_seconds,
                token_timeout_seconds=self._token_timeout_seconds,
            )

        return await self._links.follow(placement.decode_address, request, make_attempt)

    def _seconds_left(self, prompt: PreparedPrompt, progress: TokenProgress) -> float:
        limits = (self._request_timeout_seconds, prompt.request.timeout_seconds)
        timeout_seconds = min(limit for limit in limits if limit is not None)
        return max(0.0, progress.begun_seconds + timeout_seconds - asyncio.get_running_loop().time())

    def _note_failure(
        self, generation_id: str, placement: Placement, progress: TokenProgress, error: BatonError
    ) -> None:
        if placement.decode_node_id not in progress.failed_node_ids:
            progress.failed_node_ids.append(placement.decode_node_id)
        log.warning(
            "attempt_failed generation=%s attempt=%d node=%s delivered_tokens=%d reason=%s error=%r",
            generation_id,
            progress.num_attempts,
            placement.decode_node_id,
            len(progress.output_token_ids),
            error.reason,
            error.message,
        )
        trace.get_current_span().add_event(
            names.EVENT_RETRY,
            {
                names.REASON: error.reason,
                names.ATTEMPT: progress.num_attempts,
                names.NODE_ID: placement.decode_node_id,
            },
        )


def _adapter_message(adapter: Adapter | None) -> AdapterMessage | None:
    return None if adapter is None else AdapterMessage(name=adapter.name, digest=adapter.digest)


def _ending(prompt: PreparedPrompt, sampling: SamplingParameters, progress: TokenProgress) -> Finished | None:
    """Return how a generation ended if its tokens say so although its node could not any more, else None."""
    output = progress.output_token_ids
    assert progress.placement is not None
    if output and output[-1] in prompt.end_token_ids:
        reason = FINISH_REASON_STOP
    elif len(output) >= sampling.max_token_count:
        reason = FINISH_REASON_LENGTH
    else:
        return None
    usage = Usage(cached_token_count=progress.num_expected_cached_tokens)
    return Finished(reason=reason, usage=usage, summary=planned_summary(progress.placement))


def planned_summary(placement: Placement) -> PlacementSummary:
    """Return what is known of a placement whose decode node could not report on it."""
    return PlacementSummary(
        decode_node_id=placement.decode_node_id,
        prefill_node_id=placement.prefill_node_id or placement.decode_node_id,
        placement_id=placement.placement_id,
    )


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
