"""Places requests: asks the cache index who holds their prefixes, decides on a snapshot, keeps account."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import grpc
from opentelemetry import trace

from baton.capacity.cost import TERMS
from baton.capacity.placement import Candidate, Decision, PrefillPolicy, place
from baton.capacity.search.placement_search import NUM_BEST, PlacementSearch
from baton.capacity.snapshot import ClusterSnapshot, LowerPrefix, PlacementRequest, blocks_for
from baton.errors import NotFoundError, OutOfMemoryError, OverloadedError, UnavailableError
from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1 import cache_index_service_pb2_grpc as service
from baton.internal.v1.router_service_pb2 import PlaceRequest, PlaceResponse
from baton.kv.hashing import HeldPrefix
from baton.router.admission.admitted_work import Asker
from baton.router.admission.control import MAX_JUDGED, AdmissionControl, AdmittedRequest, RefusedRequest
from baton.router.affinity import RoundRobin, SessionAffinity
from baton.router.explanation.decision_log import DecisionRecord, best_candidates, infeasible_reasons
from baton.router.proto import adapter_of, asker_of, grant_transfers, place_response, placement_request
from baton.router.state import RouterState
from baton.rpc.loop_channel import LoopChannel
from baton.telemetry import names
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


class CacheIndexClient:
    """Client of CacheIndexService.Lookup with a short deadline; a cold cache is a worse placement, not an error.

    Every failure is counted; the first after an answer is logged as a warning, further ones are not.
    """

    def __init__(self, channel: LoopChannel, *, timeout_seconds: float, metrics: Metrics) -> None:
        self._stub = service.CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self._timeout_seconds = timeout_seconds
        self._metrics = metrics
        self._is_lost = False

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return the leading blocks that each node holds; empty if the index does not answer in time."""
        if not block_hashes:
            return {}
        request = messages.LookupRequest(block_hashes=block_hashes)
        try:
            response = await self._stub.Lookup(request, timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            self._metrics.add(names.FAILED_LOOKUPS, 1, {names.REASON: error.code().name})
            log.log(
                logging.DEBUG if self._is_lost else logging.WARNING, "cache_lookup_failed code=%s", error.code().name
            )
            self._is_lost = True
            return {}
        self._is_lost = False
        return {prefix.node_id: _from_wire(prefix) for prefix in response.prefixes}


def _from_wire(message: messages.NodePrefix) -> HeldPrefix:
    """Return a prefix; an index that knows of devices alone says nothing of the rest."""
    return HeldPrefix(
        message.block_count, message.host_block_count, message.lower_block_count, message.disk_block_count
    )


PlacementPolicy = PrefillPolicy | Literal["round-robin"]
"""How nodes are chosen: by predicted seconds, or in turn."""

MAX_HOLDERS = 4
"""Nodes with the longest cached prefixes from which one may be pulled: every one is priced for every decode node."""


class PlacementIds:
    """Names of what one router decides; they ascend as long as it runs, and nodes compute prompts in that order.

    They tell clients neither its age nor how many there are.
    """

    def __init__(self) -> None:
        self._router = secrets.token_hex(8)
        self._offset = secrets.randbits(62) - time.monotonic_ns()
        self._last = 0

    def new(self) -> str:
        """Return a name that no other placement has; `snapshot.seconds_between` reads it."""
        self._last = max(self._last + 1, self._offset + time.monotonic_ns())
        return f"{self._router}{self._last:016x}"


class Placer:
    """Places requests.

    `lookup` knows who holds their prefixes; None: nobody is asked. `admission` refuses what would miss its objectives;
    None: everything is placed. `new_search` makes what decides for a model, given how many candidates it is to tell.
    """

    def __init__(
        self,
        state: RouterState,
        lookup: CacheIndexClient | None,
        *,
        new_id: Callable[[], str] | None = None,
        policy: PlacementPolicy = "cheapest",
        admission: AdmissionControl | None = None,
        new_search: Callable[[int], PlacementSearch] = PlacementSearch,
    ) -> None:
        self._state = state
        self._lookup = lookup
        self._new_id = new_id or PlacementIds().new
        self._policy = policy
        self._round_robin = RoundRobin()
        self._admission = admission
        self._metrics = Metrics()
        self._new_search = new_search
        self._searches: dict[str, PlacementSearch] = {}
        self._affinity = SessionAffinity()

    async def place(self, message: PlaceRequest) -> PlaceResponse:
        """Choose where a request runs.

        Between the snapshot and the account nothing is awaited, so two requests never decide upon the same free room.

        Raises:
            InvalidFieldError: If a field has a bad value.
            NotFoundError: If no decode node serves the model.
            OutOfMemoryError: If the request fits no decode node.
            OverloadedError: OVERLOADED or FAIR_SHARE, if it would miss its objectives or those of others.
            UnavailableError: NO_NODE, if no node can take it now.
        """
        request, adapter, asker = placement_request(message), adapter_of(message), asker_of(message)
        if all(not node.description.can_decode for node in self._state.nodes.of_model(message.model_id)):
            raise NotFoundError(f"no decode node serves the model {message.model_id!r}")
        if self._lookup is not None and not message.bypass_prefix_cache:
            request = self._with_prefixes(request, await self._lookup.held_prefixes(message.block_hashes))
        is_searched = not message.is_dry_run and self._policy != "round-robin"
        snapshot = self._state.snapshot(message.model_id, adapter, holder_ids=_longest(request), are_kept=is_searched)
        decision, max_tokens = self._decide(message, snapshot, request), 0
        if message.session and not (message.is_dry_run or request.pins or self._policy == "round-robin"):
            decision = self._affinity.prefer(message.tenant, message.session, snapshot, request, decision)
        if decision.choice is None:
            error = _no_choice(request, snapshot, decision)
            self._remember(message, decision, refusal=error.message)
            raise error
        if self._admission is not None and not (message.is_dry_run or message.is_admitted):
            try:
                decision, max_tokens = self._admit(message, snapshot, request, decision, self._admission, asker)
            except OverloadedError as error:
                self._remember(message, decision, refusal=error.message)
                raise
        choice = decision.choice
        assert choice is not None
        placement_id = self._new_id()
        self._remember(message, decision, placement_id=placement_id, max_tokens=max_tokens)
        if not message.is_dry_run:
            if message.session:
                self._affinity.note(message.tenant, message.session, choice.decode_node_id)
            self._state.account(placement_id, choice, request, decision.runner_up)
            if self._admission is not None:
                num_tokens, is_degraded = max_tokens or request.max_tokens, max_tokens > 0
                self._admission.place(placement_id, choice, asker, max_tokens=num_tokens, is_degraded=is_degraded)
            self._metrics.add(names.PLACEMENTS, 1, {names.SIDE: "decode" if choice.is_local else "prefill"})
        _record(message.request_id, placement_id, choice)
        node = self._state.nodes.get(choice.decode_node_id)
        assert node is not None
        response = place_response(placement_id, node.description, choice, decision, has_all=message.is_dry_run)
        if not message.is_dry_run:
            grant_transfers(response.placement, message, self._state.nodes, time.time())
        if max_tokens:
            response.placement.degraded_max_token_count = max_tokens
            response.placement.degraded_reason = "OVERLOADED"
        return response

    def _decide(self, message: PlaceRequest, snapshot: ClusterSnapshot, request: PlacementRequest) -> Decision:
        """Return the decision; who only asks is shown all candidates, whatever it takes to price them."""
        if self._policy == "round-robin":
            return self._round_robin.place(snapshot, request)
        if message.is_dry_run:
            return place(snapshot, request, policy=self._policy)
        if message.model_id not in self._searches:
            num_best = NUM_BEST if self._admission is None else MAX_JUDGED
            self._searches[message.model_id] = self._new_search(num_best)
        return self._searches[message.model_id].place(snapshot, request, policy=self._policy)

    def _admit(
        self,
        message: PlaceRequest,
        snapshot: ClusterSnapshot,
        request: PlacementRequest,
        decision: Decision,
        admission: AdmissionControl,
        asker: Asker,
    ) -> AdmittedRequest:
        """Return the decision that keeps the objectives, with less output if need be; raise OverloadedError if none."""
        limits = admission.limits
        admission.ask(asker)
        admitted = admission.judge(decision, asker)
        if isinstance(admitted, RefusedRequest) and limits.policy == "degrade":
            max_tokens = min(request.max_tokens, limits.degraded_max_tokens)
            cut = self._decide(message, snapshot, replace(request, max_tokens=max_tokens))
            degraded = admission.judge(cut, asker, is_degraded=True)
            if isinstance(degraded, AdmittedRequest):
                self._metrics.add(names.DEGRADED)
                return degraded._replace(max_tokens=max_tokens)
        if isinstance(admitted, RefusedRequest):
            admission.refuse(admitted, asker)
            labels = {names.REASON: admitted.reason, names.TENANT: asker.tenant}
            self._metrics.add(names.REFUSALS, 1, {**labels, names.GEN_AI_REQUEST_MODEL: asker.model})
            raise _refusal(admitted)
        return admitted

    def _remember(
        self,
        message: PlaceRequest,
        decision: Decision,
        *,
        placement_id: str = "",
        refusal: str = "",
        max_tokens: int = 0,
    ) -> None:
        """Keep a decision for those who ask why, with what is known at this moment."""
        if message.is_dry_run:
            return
        choice = None if refusal else decision.choice
        self._state.decisions.add(
            DecisionRecord(
                message.request_id,
                message.model_id,
                message.prompt_token_count,
                message.max_token_count,
                tuple(sorted(message.excluded_node_ids)),
                placement_id,
                choice,
                refusal,
                best_candidates(decision, num_chosen=0 if refusal else 1),
                len(decision.candidates) + decision.num_left_out,
                infeasible_reasons(decision),
                self._state.known_nodes(choice) if choice else (),
                self._state.known_link(choice) if choice else None,
                degraded_max_tokens=max_tokens,
            )
        )

    def _with_prefixes(self, request: PlacementRequest, prefixes: Mapping[str, HeldPrefix]) -> PlacementRequest:
        """Return a request with the leading blocks that each node holds, in tokens."""
        if not prefixes:
            return request
        tokens = {node_id: self._block_tokens(node_id) for node_id in prefixes}
        return replace(
            request,
            cached_tokens={node_id: held.num_blocks * tokens[node_id] for node_id, held in prefixes.items()},
            lower_tokens={
                node_id: LowerPrefix(
                    held.num_host_blocks * tokens[node_id],
                    held.num_lower_blocks * tokens[node_id],
                    held.num_disk_blocks * tokens[node_id],
                )
                for node_id, held in prefixes.items()
                if held.num_lower_blocks
            },
        )

    def _block_tokens(self, node_id: str) -> int:
        node = self._state.nodes.get(node_id)
        return node.description.block_tokens if node else 0


def _longest(request: PlacementRequest) -> list[str]:
    """Return the nodes with the longest cached prefixes that others may take."""
    lengths = {node_id: request.pullable_from(node_id) for node_id in (*request.cached_tokens, *request.lower_tokens)}
    holders = [node_id for node_id, num_tokens in lengths.items() if num_tokens]
    return sorted(holders, key=lambda node_id: (-lengths[node_id], node_id))[:MAX_HOLDERS]


def _refusal(refused: RefusedRequest) -> OverloadedError:
    """Return the error of a refusal; its metadata say in seconds when to ask again, whole ones and exactly."""
    whole_seconds = max(1, math.ceil(refused.wait_seconds))
    whose = "the objectives of requests" if refused.reason == "OVERLOADED" else "the share of this API key"
    return OverloadedError(
        f"overloaded: {whose} would not be kept; ask again in {whole_seconds} s",
        reason=refused.reason,
        metadata={"retry_after_seconds": str(whole_seconds), "wait_seconds": f"{refused.wait_seconds:.3f}"},
    )


def _no_choice(
    request: PlacementRequest, snapshot: ClusterSnapshot, decision: Decision
) -> OutOfMemoryError | UnavailableError:
    decoders = [node for node in snapshot.nodes if node.can_decode]
    num_tokens = request.num_prompt_tokens + 1
    reasons = "; ".join(sorted({candidate.infeasible_reason for candidate in decision.candidates}))
    if decoders and all(
        num_tokens > node.shape.max_context_tokens or blocks_for(node, num_tokens) > node.num_blocks
        for node in decoders
    ):
        return OutOfMemoryError(f"{request.num_prompt_tokens} prompt tokens fit no decode node: {reasons}")
    absence = "none of the pinned nodes is registered" if request.pins else "no decode node is registered any more"
    return UnavailableError(f"no node can take the request now: {reasons or absence}", reason="NO_NODE")


def _record(request_id: str, placement_id: str, choice: Candidate) -> None:
    """Put the decision into the log and onto the call's span."""
    total_seconds = choice.estimate.total_seconds if choice.estimate else -1.0
    span = trace.get_current_span()
    if span.is_recording() and choice.estimate:
        terms = {term: getattr(choice.estimate, f"{term}_seconds") for term in TERMS}
        span.set_attributes({names.ESTIMATED_TERM.format(term=term): seconds for term, seconds in terms.items()})
    span.set_attributes(
        {
            names.REQUEST_ID: request_id,
            names.DECODE_NODE_ID: choice.decode_node_id,
            names.PREFILL_NODE_ID: choice.prefill_node_id or choice.decode_node_id,
            names.PULL_NODE_ID: choice.pull_node_id,
            names.ESTIMATED_SECONDS: total_seconds,
        }
    )
    log.debug(
        "placed request_id=%s placement_id=%s decode=%s prefill=%s pull=%s total_seconds=%.4f",
        request_id,
        placement_id,
        choice.decode_node_id,
        choice.prefill_node_id or "local",
        choice.pull_node_id or "none",
        total_seconds,
    )
