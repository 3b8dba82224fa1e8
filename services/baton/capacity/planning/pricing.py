"""What it costs to hold one model on some machines, by the formulas of placement. Pure.

Its requests go to the cheapest pairs of holders first, each up to `FULL_SHARE` of what a machine does. What they cost
is the number of requests that are there on average: those that run, by Little's law, and those that wait for a machine.
Source: docs/planner.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.capacity import cost
from baton.capacity.cost import ModelShape, NodeProfile
from baton.capacity.placement import Candidate, place
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeLoad, NodeSnapshot, PlacementRequest
from baton.capacity.terms import USUAL_PASS_TOKENS

FULL_SHARE = 0.7
"""Part of a machine's time up to which it is given requests of one model before the next best takes them."""
BATCH = 16
"""Requests that a busy machine decodes together: what a step takes is shared by so many."""
_SPARE = 720_720
"""Divisible by 1 to 16: what a model's k-th holder is worth where holders cost nothing is a k-th of it."""
_BLOCK_TOKENS = 16
_KV_PARTS = 4
"""Of what weights leave, of which one is for the K and V that are expected: with less a model serves, too."""
UNIT = 1e-9
"""Costs are compared in whole billionths of a request, so that sums do not depend on their order."""
_STEEP_SHARE = 0.95
"""Beyond, the queue of a machine is taken to grow in proportion: who is overloaded more is worse off."""


class Demand(NamedTuple):
    """What is expected of a model's requests."""

    requests_per_second: float = 0.1
    """Above 0."""
    num_prompt_tokens: int = 1024
    """Of one, 1 or more."""
    num_output_tokens: int = 256
    """Of one, 1 or more."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine that can run workers."""

    machine_id: str
    profile: NodeProfile
    usable_bytes: int
    """Memory for models; what workers hold that the plan may end is part of it."""
    held: frozenset[str] = frozenset()
    """Models that it holds."""
    unusable_reason: str = ""
    """Why it can hold nothing; empty if it can."""
    pools: Mapping[str, int] = field(default_factory=dict)
    """Bytes for K and V that workers of models which it holds have; without one: as many as are expected."""


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model that should be served."""

    name: str
    shape: ModelShape
    weight_bytes: int
    demand: Demand = Demand()
    min_replicas: int = 1
    """Machines that should hold it at least, 1 or more."""
    max_replicas: int = 0
    """At most; 0: any number."""
    pinned: frozenset[str] = frozenset()
    """The machines that hold it; empty: whichever."""
    excluded: frozenset[str] = frozenset()
    """Machines that never do."""
    rank: int = 0
    """Where not all fit, those of greater rank go without."""

    @property
    def num_needed(self) -> int:
        """Return how many machines should hold it at least."""
        return max(1, self.min_replicas, len(self.pinned))

    @property
    def fixed_bytes(self) -> int:
        """Return what a worker takes beside K and V."""
        return self.weight_bytes + self.shape.workspace_bytes(USUAL_PASS_TOKENS)


class Price(NamedTuple):
    """By what plans are compared, the least first. All but waiting are sums over models."""

    missing: int
    """Holders that models lack; a first one weighs more than all others, and a lower rank more than all higher ones."""
    cost: int
    """Requests that run or wait, in billionths."""
    spares: int
    """The less, the more models go on where a machine goes: further holders that cost nothing."""
    moved_bytes: int


class Option(NamedTuple):
    """One way to hold a model."""

    mask: int
    """Holders, as bits by the index of machines."""
    routed: tuple[tuple[Candidate, float], ...]
    """Requests a second of each pair, or of one machine alone."""
    price: Price
    loads: tuple[float, ...]
    """Part of each machine's time that it takes."""
    memory: tuple[int, ...]
    """Bytes that it takes of each."""


class _Route(NamedTuple):
    """A pair, or one machine alone."""

    candidate: Candidate
    mask: int
    """Its machines."""
    seconds: float
    """Of one request on idle machines."""
    shares: list[float]
    """Seconds of each machine that a request takes where it is busy."""


class Pricer:
    """Prices the ways to hold one model."""

    def __init__(
        self,
        machines: Sequence[Machine],
        wanted: WantedModel,
        beside: Sequence[WantedModel],
        links: Mapping[tuple[str, str], Link],
        default_link: Link,
    ) -> None:
        self.wanted, self._machines = wanted, machines
        self._ways: dict[int, Sequence[Option]] = {}
        all_needed = 1 + sum(each.num_needed for each in beside)
        ranks = sorted({each.rank for each in beside}, reverse=True)
        self._weight = all_needed ** (3 * ranks.index(wanted.rank))
        self._first_weight = self._weight * all_needed
        self._index = {machine.machine_id: index for index, machine in enumerate(machines)}
        able = [
            each
            for each in machines
            if (each.machine_id in wanted.pinned or not wanted.pinned) and each.machine_id not in wanted.excluded
            if not each.unusable_reason and each.usable_bytes >= wanted.fixed_bytes
        ]
        request = PlacementRequest(wanted.demand.num_prompt_tokens, wanted.demand.num_output_tokens)
        workers = tuple(_as_worker(each, wanted) for each in able)
        snapshot = ClusterSnapshot(workers, default_link, links, float(request.max_tokens))
        self.candidates = place(snapshot, request).candidates
        """Every pair, and each machine alone, for one request; cheapest first."""
        self._routes = [self._route(each) for each in self.candidates if each.estimate]
        self._able = sum(1 << self._index[each.machine_id] for each in able)
        self.least_seconds = min((route.seconds for route in self._routes), default=0.0)
        """Of a request, wherever it runs."""

    def index_of(self, machine_id: str) -> int:
        """Return the index of a machine."""
        return self._index[machine_id]

    def allows(self, mask: int) -> bool:
        """Return whether these machines may hold it together."""
        most = max(self.wanted.max_replicas or len(self._machines), self.wanted.num_needed)
        return mask & ~self._able == 0 and mask.bit_count() <= most

    def options(self) -> list[Option]:
        """Return every way to hold it, cheapest first. Exponential in machines."""
        masks = filter(self.allows, range(1 << len(self._machines)))
        return sorted((way for mask in masks for way in self.ways(mask)), key=lambda way: (way.price, way.mask))

    def ways(self, mask: int) -> Sequence[Option]:
        """Return the ways to serve it by these holders: in pairs, and each by itself where that is another; or none."""
        if mask not in self._ways:
            paired, alone = self._way(mask, alone=False), self._way(mask, alone=True)
            found = [paired] if alone is None or (paired and paired.routed == alone.routed) else [paired, alone]
            self._ways[mask] = [way for way in found if way]
        return self._ways[mask]

    def _route(self, candidate: Candidate) -> _Route:
        assert candidate.estimate is not None
        decode, prefill = candidate.decode_node_id, candidate.prefill_node_id or candidate.decode_node_id
        demand = self.wanted.demand
        context = demand.num_prompt_tokens + demand.num_output_tokens / 2
        step = cost.step_seconds(self.wanted.shape, self._machines[self._index[decode]].profile, BATCH, context)
        shares = [0.0] * len(self._machines)
        shares[self._index[decode]] += demand.num_output_tokens * step / BATCH
        shares[self._index[prefill]] += candidate.estimate.prefill_seconds
        mask = 1 << self._index[decode] | 1 << self._index[prefill]
        return _Route(candidate, mask, candidate.estimate.total_seconds, shares)

    def _way(self, mask: int, *, alone: bool) -> Option | None:
        """Return what it costs to serve the requests, the cheapest route first; None: no route serves any."""
        wanted, left = self.wanted, self.wanted.demand.requests_per_second
        shares, rates = [0.0] * len(self._machines), list[tuple[_Route, float]]()
        for route in self._routes if mask else ():
            if left <= 0:
                break
            if route.mask & ~mask or (alone and not route.candidate.is_local):
                continue
            room = min((FULL_SHARE - has) / takes for has, takes in zip(shares, route.shares, strict=True) if takes)
            if room > 0:
                rate = min(left, room)
                rates.append((route, rate))
                shares = [has + rate * takes for has, takes in zip(shares, route.shares, strict=True)]
                left -= rate
        if mask and not rates:
            return None
        scale = wanted.demand.requests_per_second / sum(rate for _, rate in rates) if rates else 0.0
        rates = [(route, rate * scale) for route, rate in rates]  # what all of them cannot take, each takes its part of
        loads = tuple(share * scale for share in shares)
        running = math.floor(sum(rate * route.seconds for route, rate in rates) / UNIT)
        count = mask.bit_count()
        moved = sum(mask >> index & 1 and wanted.name not in each.held for index, each in enumerate(self._machines))
        price = Price(
            self._weight * max(0, wanted.num_needed - count) + (0 if count else self._first_weight),
            running + sum(map(queue_cost, loads)),
            -sum(_SPARE // each for each in range(1, count + 1)),
            wanted.weight_bytes * moved,
        )
        routed = tuple((route.candidate, rate) for route, rate in rates)
        return Option(mask, routed, price, loads, self._memory(mask, rates))

    def _memory(self, mask: int, rates: Sequence[tuple[_Route, float]]) -> tuple[int, ...]:
        """Return the bytes on each machine: weights, workspace, and K and V of what is there at once, one at least."""
        at_once = [0.0] * len(self._machines)
        for route, rate in rates:
            for index, takes in enumerate(route.shares):
                at_once[index] += rate * route.seconds if takes else 0.0
        told, shape = self.wanted.demand, self.wanted.shape
        kv_bytes = (told.num_prompt_tokens + told.num_output_tokens) * shape.kv_bytes_per_token + shape.state_bytes
        fixed_bytes, needed = self.wanted.fixed_bytes, []
        for index, (machine, count) in enumerate(zip(self._machines, at_once, strict=True)):
            most = max(1, (machine.usable_bytes - fixed_bytes) // (_KV_PARTS * kv_bytes))
            expected = min(math.ceil(max(1.0, count)), most) * kv_bytes
            pool = max(expected, machine.pools.get(self.wanted.name, 0))
            needed.append(fixed_bytes + pool if mask >> index & 1 else 0)
        return tuple(needed)


def _as_worker(machine: Machine, wanted: WantedModel) -> NodeSnapshot:
    """Return an idle machine with the model, all memory beside it being there for K and V."""
    shape = wanted.shape
    num_blocks = (machine.usable_bytes - wanted.fixed_bytes) // shape.kv_bytes_per_token // _BLOCK_TOKENS
    load = NodeLoad(num_free_blocks=num_blocks)
    return NodeSnapshot(machine.machine_id, "worker", shape, machine.profile, num_blocks, _BLOCK_TOKENS, 1, load)


def queue_cost(share: float) -> int:
    """Return how many requests wait on average where a machine is busy for this part of its time, in billionths.

    Source: share²/(1 - share), those beyond the served where turns are shared (M/M/1); its parabola where steep: it
    counts, too, whether one machine or two have far too much to do.
    """
    at = min(share, _STEEP_SHARE)
    slope, beyond = (2 * at - at * at) / (1 - at) ** 2, share - at
    return math.floor((at * at / (1 - at) + slope * beyond + beyond * beyond / (1 - at) ** 3) / UNIT)
