"""Asks the cache index who holds a prompt's prefix; without an answer in time nobody does.

Places requests: asks the cache index, decides on a snapshot, keeps account.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from opentelemetry import trace

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate, Decision, PrefillPolicy, place
from baton.capacity.snapshot import ClusterSnapshot, LowerPrefix, NodePair, PlacementRequest, blocks_for
from baton.errors import NotFoundError, OutOfMemoryError, UnavailableError
from baton.kv.adapter import Adapter
from baton.kv.tiers import HeldPrefix
from baton.router.state import RouterState
from baton.rpc.loop_channel import LoopChannel
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1 import cache_index_service_pb2 as messages
from baton.v1 import cache_index_service_pb2_grpc as service

log = logging.getLogger(__name__)


class CacheLookup(Protocol):
    """Finds prefixes."""

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return the leading blocks that each node holds; empty if nobody does or nobody answers."""


class NoCacheLookup:
    """Stands in where there is no cache index."""

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:  # noqa: ARG002 - the protocol's signature
        """Return no prefixes."""
        return {}


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
            self._metrics.add_failed_lookup(error.code().name)
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


_TERMS = (
    "queue",
    "pull",
    "restore",
    "prefill",
    "transfer",
    "exposed",
    "time_to_first_token",
    "start",
    "step",
    "imposed",
)

MAX_ALTERNATIVES = 2
"""Prefill nodes named beside the chosen one."""
MAX_HOLDERS = 4
"""Nodes with the longest cached prefixes from which one may be pulled: every one is priced for every decode node."""


@dataclass(frozen=True, slots=True)
class PlaceQuery:
    """A request to place (protos/baton/v1/router_service.proto, PlaceRequest)."""

    request_id: str
    """Names the request."""
    model_id: str
    """Served name of the model."""
    num_prompt_tokens: int
    """Tokens of the prompt, output so far included."""
    max_tokens: int
    """Largest number of tokens still to generate."""
    block_hashes: bytes = b""
    """Chained hashes of the prompt's full blocks, joined."""
    excluded_node_ids: frozenset[str] = frozenset()
    """Nodes not to use."""
    bypass_prefix_cache: bool = False
    """Whether prefix caches must not be counted on."""
    is_dry_run: bool = False
    """Whether nothing is accounted for."""
    pins: frozenset[NodePair] = frozenset()
    """The only pairs of nodes that may be chosen; none: any."""
    needs_local_prefill: bool = False
    """Whether the prompt must be computed on the decode node."""
    assumed_tokens: Mapping[str, int] = field(default_factory=dict)
    """Tokens that nodes are taken to have cached, by node id, in place of what the cache index says; none: ask it."""
    adapter: Adapter | None = None
    """What is computed besides the model; None: nothing."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A decision with its name."""

    placement_id: str
    """Names the decision."""
    decode_address: str
    """host:port of the chosen decode node."""
    block_tokens: int
    """Tokens of its blocks."""
    choice: Candidate
    """What was chosen."""
    candidates: tuple[Candidate, ...]
    """Every candidate, cheapest first."""

    @property
    def alternatives(self) -> list[Candidate]:
        """Return what else could compute the prompt for the decode node if the prefill node fails, cheapest first."""
        if self.choice.is_local:
            return []
        others = [
            candidate
            for candidate in self.candidates
            if candidate.decode_node_id == self.choice.decode_node_id
            and candidate.prefill_node_id not in ("", self.choice.prefill_node_id)
            and candidate.estimate is not None
        ]
        return others[:MAX_ALTERNATIVES]


class Placer:
    """Turns queries into placements."""

    def __init__(
        self,
        state: RouterState,
        lookup: CacheLookup,
        new_id: Callable[[], str],
        *,
        policy: PrefillPolicy = "cheapest",
        metrics: Metrics | None = None,
    ) -> None:
        self._state = state
        self._lookup = lookup
        self._new_id = new_id
        self._policy = policy
        self._metrics = metrics or Metrics()

    async def place(self, query: PlaceQuery) -> Placed:
        """Choose where a request runs.

        Between the snapshot and the account nothing is awaited, so two queries never decide upon the same free room.

        Raises:
            NotFoundError: If no decode node serves the model.
            OutOfMemoryError: If the request fits no decode node.
            UnavailableError: NO_NODE, if no node can take it now.
        """
        if all(node.description.role != "decode" for node in self._state.nodes.of_model(query.model_id)):
            raise NotFoundError(f"no decode node serves the model {query.model_id!r}")
        prefixes = await self._prefixes(query)
        request = self._request(query, prefixes)
        snapshot = self._state.snapshot(query.model_id, query.adapter, holder_ids=_longest(request))
        decision = place(snapshot, request, policy=self._policy)
        choice = decision.choice
        if choice is None:
            raise _no_choice(query, snapshot, decision)
        placement_id = self._new_id()
        if not query.is_dry_run:
            self._state.account(placement_id, choice, request, _runner_up(decision))
            self._metrics.add_placement("decode" if choice.is_local else "prefill")
        _record(query, placement_id, choice)
        node = self._state.nodes.get(choice.decode_node_id)
        assert node is not None
        return Placed(
            placement_id, node.description.address, node.description.block_tokens, choice, decision.candidates
        )

    async def _prefixes(self, query: PlaceQuery) -> Mapping[str, HeldPrefix]:
        """Return the leading blocks that each node has cached."""
        if query.bypass_prefix_cache or query.assumed_tokens:
            return {}
        return await self._lookup.held_prefixes(query.block_hashes)

    def _request(self, query: PlaceQuery, prefixes: Mapping[str, HeldPrefix]) -> PlacementRequest:
        """Return what placement decides upon, in tokens."""
        tokens = {node_id: self._block_tokens(node_id) for node_id in prefixes}
        cached_tokens = {node_id: held.num_blocks * tokens[node_id] for node_id, held in prefixes.items()}
        lower_tokens = {
            node_id: LowerPrefix(
                held.num_host_blocks * tokens[node_id],
                held.num_lower_blocks * tokens[node_id],
                held.num_disk_blocks * tokens[node_id],
            )
            for node_id, held in prefixes.items()
            if held.num_lower_blocks
        }
        return PlacementRequest(
            num_prompt_tokens=query.num_prompt_tokens,
            max_tokens=query.max_tokens,
            cached_tokens=query.assumed_tokens or cached_tokens,
            lower_tokens=lower_tokens,
            excluded_node_ids=query.excluded_node_ids,
            pins=query.pins,
            needs_local_prefill=query.needs_local_prefill,
        )

    def _block_tokens(self, node_id: str) -> int:
        node = self._state.nodes.get(node_id)
        return node.description.block_tokens if node else 0


def _longest(request: PlacementRequest) -> list[str]:
    """Return the nodes with the longest cached prefixes that others may take."""
    lengths = {node_id: request.pullable_from(node_id) for node_id in (*request.cached_tokens, *request.lower_tokens)}
    holders = [node_id for node_id, num_tokens in lengths.items() if num_tokens]
    return sorted(holders, key=lambda node_id: (-lengths[node_id], node_id))[:MAX_HOLDERS]


def _runner_up(decision: Decision) -> CostEstimate | None:
    """Return the terms of the best candidate that was not chosen."""
    others = (candidate for candidate in decision.candidates if candidate is not decision.choice)
    return next((candidate.estimate for candidate in others if candidate.estimate), None)


def _no_choice(query: PlaceQuery, snapshot: ClusterSnapshot, decision: Decision) -> OutOfMemoryError | UnavailableError:
    decoders = [node for node in snapshot.nodes if node.role == "decode"]
    num_tokens = query.num_prompt_tokens + 1
    reasons = "; ".join(sorted({candidate.infeasible_reason for candidate in decision.candidates}))
    if decoders and all(
        num_tokens > node.shape.max_context_tokens or blocks_for(node, num_tokens) > node.num_blocks
        for node in decoders
    ):
        return OutOfMemoryError(f"{query.num_prompt_tokens} prompt tokens fit no decode node: {reasons}")
    absence = "none of the pinned nodes is registered"
    return UnavailableError(f"no node can take the request now: {reasons or absence}", reason="NO_NODE")


def _record(query: PlaceQuery, placement_id: str, choice: Candidate) -> None:
    """Put the decision into the log and onto the call's span."""
    total_seconds = choice.estimate.total_seconds if choice.estimate else -1.0
    span = trace.get_current_span()
    if span.is_recording() and choice.estimate:
        terms = {term: getattr(choice.estimate, f"{term}_seconds") for term in _TERMS}
        span.set_attributes({names.ESTIMATED_TERM.format(term=term): seconds for term, seconds in terms.items()})
    span.set_attributes(
        {
            names.REQUEST_ID: query.request_id,
            names.DECODE_NODE_ID: choice.decode_node_id,
            names.PREFILL_NODE_ID: choice.prefill_node_id or choice.decode_node_id,
            names.PULL_NODE_ID: choice.pull_node_id,
            names.ESTIMATED_SECONDS: total_seconds,
        }
    )
    log.debug(
        "placed request_id=%s placement_id=%s decode=%s prefill=%s pull=%s total_seconds=%.4f",
        query.request_id,
        placement_id,
        choice.decode_node_id,
        choice.prefill_node_id or "local",
        choice.pull_node_id or "none",
        total_seconds,
    )
