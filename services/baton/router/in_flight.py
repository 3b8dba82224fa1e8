"""Placements in flight: the work that no load report covers yet, and the estimates to compare outcomes with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate
from baton.capacity.snapshot import NodeLoad


@dataclass(frozen=True, slots=True)
class AssumedWork:
    """What one placement adds to one node."""

    num_prompt_tokens: int
    """Prompt tokens that the node must compute."""
    num_blocks: int
    """Blocks that it must find."""


@dataclass(frozen=True, slots=True)
class _Entry:
    work: AssumedWork
    expires_at_seconds: float
    is_accepted: bool = False
    """Whether the decode node has the request, so that the prefill node's next report covers it."""


class AssumedPlacements:
    """Work in flight per node.

    An entry ends when a load report covers it (the decode node's names the placement; the prefill node's is the
    first after that), when the request's outcome arrives, or when its time is up, whichever is first.
    """

    def __init__(self, clock: Callable[[], float], ttl_seconds: float) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._decode: dict[str, dict[str, _Entry]] = {}
        self._prefill: dict[str, dict[str, _Entry]] = {}

    def add(self, placement_id: str, decode_node_id: str, decode: AssumedWork) -> None:
        """Count a placement on its decode node."""
        expires_at = self._clock() + self._ttl_seconds
        self._decode.setdefault(decode_node_id, {})[placement_id] = _Entry(decode, expires_at)

    def add_prefill(self, placement_id: str, prefill_node_id: str, prefill: AssumedWork) -> None:
        """Count a placement on its prefill node."""
        expires_at = self._clock() + self._ttl_seconds
        self._prefill.setdefault(prefill_node_id, {})[placement_id] = _Entry(prefill, expires_at)

    def reported(self, node_id: str, accepted_placement_ids: Iterable[str]) -> None:
        """Take a load report: it covers what the node has accepted, and prefills that were accepted before it."""
        entries = self._prefill.get(node_id, {})
        self._prefill[node_id] = {name: entry for name, entry in entries.items() if not entry.is_accepted}
        for placement_id in accepted_placement_ids:
            self._decode.get(node_id, {}).pop(placement_id, None)
            for prefills in self._prefill.values():
                if placement_id in prefills:
                    prefills[placement_id] = replace(prefills[placement_id], is_accepted=True)

    def settle(self, placement_id: str) -> None:
        """Drop a placement whose outcome is known."""
        for entries in (*self._decode.values(), *self._prefill.values()):
            entries.pop(placement_id, None)

    def forget(self, node_id: str) -> None:
        """Drop everything on a node that is gone."""
        self._decode.pop(node_id, None)
        self._prefill.pop(node_id, None)

    def added_to(self, node_id: str, load: NodeLoad) -> NodeLoad:
        """Return `load` with the node's entries added as waiting requests."""
        works = [entry.work for entry in self._live(node_id)]
        if not works:
            return load
        return replace(
            load,
            num_waiting=load.num_waiting + len(works),
            num_pending_prompt_tokens=load.num_pending_prompt_tokens + sum(work.num_prompt_tokens for work in works),
            num_free_blocks=load.num_free_blocks - sum(work.num_blocks for work in works),
        )

    def _live(self, node_id: str) -> list[_Entry]:
        now = self._clock()
        live: list[_Entry] = []
        for by_node in (self._decode, self._prefill):
            if node_id in by_node:
                by_node[node_id] = {n: e for n, e in by_node[node_id].items() if e.expires_at_seconds > now}
                live.extend(by_node[node_id].values())
        return live


MAX_ENTRIES = 16_384
"""Placements remembered; the oldest goes first. One whose outcome comes later is simply not learnt from."""


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """One placement."""

    candidate: Candidate
    """What was chosen."""
    num_prompt_tokens: int
    """Tokens of the prompt."""
    base_step_seconds: float
    """Estimated decode step without correction."""
    runner_up: CostEstimate | None = None
    """Terms of the next best candidate; None if there was none."""

    def has_restored(self, num_cached_tokens: int) -> bool:
        """Return whether, of what the computing node took as cached, part was copied back to its device.

        The copy is then part of what is measured as computing the prompt.
        """
        num_restored = self.candidate.prefill_restored_tokens
        return num_restored > 0 and num_cached_tokens > self.candidate.prefill_cached_tokens - num_restored


class AwaitedOutcomes:
    """Placements by id, at most `MAX_ENTRIES`, each taken out once."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._placed: OrderedDict[str, PlacedRequest] = OrderedDict()

    def add(self, placement_id: str, placed: PlacedRequest) -> None:
        """Remember a placement."""
        self._placed[placement_id] = placed
        if len(self._placed) > self._max_entries:
            self._placed.popitem(last=False)

    def take(self, placement_id: str) -> PlacedRequest | None:
        """Return a placement and forget it; None if it is not known (any more)."""
        return self._placed.pop(placement_id, None)
