"""Placements in flight: what they add to nodes and links, and the estimates to compare outcomes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from baton.capacity import cost
from baton.capacity.cost import CostEstimate, ModelShape, NodeProfile, QueuedWork
from baton.capacity.placement import Candidate
from baton.capacity.snapshot import NodeLoad
from baton.capacity.value_class import value_class

_MAX_UNLISTED = 64
"""Prompts that stand for all that a report counts and does not list: what a decision costs grows with them."""


@value_class()
class PlacedWork:
    """What one placement adds to one node."""

    prompt_begin: int
    """First position of the prompt that the node computes."""
    prompt_end: int
    """Position after the last one; as `prompt_begin`: it computes none."""
    num_blocks: int
    """Blocks that it must find."""
    is_export: bool = False
    """Whether it computes the prompt for another node, and never decodes."""

    @property
    def num_prompt_tokens(self) -> int:
        """Return the positions that the node computes."""
        return self.prompt_end - self.prompt_begin


@dataclass(slots=True)
class _Entry:
    work: PlacedWork
    placed_at_seconds: float
    is_reported: bool = False
    """Whether the node has the request, so that its reports cover it."""
    was_listed: bool = False
    """Whether one of them has listed its prompt."""


class PlacementLedger:
    """Work in flight per node.

    An entry counts until its node reports that it has the request. It is kept for as long as reports list its prompt,
    because the node does not say what will come back from host memory of one that it has not begun with. It ends before
    that when the request's outcome arrives, or its time is up and no node has reported it.
    """

    def __init__(self, clock: Callable[[], float], ttl_seconds: float) -> None:
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._entries: dict[str, dict[str, _Entry]] = {}

    def add(self, placement_id: str, node_id: str, work: PlacedWork) -> None:
        """Count a placement on a node."""
        self._entries.setdefault(node_id, {})[placement_id] = _Entry(work, self._clock())

    def reported(self, node_id: str, load: NodeLoad, accepted_placement_ids: Iterable[str]) -> dict[str, float]:
        """Take a load report: it covers what the node has accepted or lists.

        Returns how much of each prompt for another node it has computed by now, 0 to 1: all of those that it lists no
        more, or has and does not list though it lists all.
        """
        entries, shares = self._entries.get(node_id, {}), dict[str, float]()
        listed = {prompt.placement_id: prompt for prompt in load.queued_prompts}
        is_whole = sum(each.num_left_tokens for each in load.queued_prompts) >= load.num_pending_prompt_tokens
        named = {*accepted_placement_ids, *listed}
        for placement_id, entry in list(entries.items()):
            entry.is_reported |= placement_id in named
            if not entry.is_reported:
                continue
            if prompt := listed.get(placement_id):
                entry.was_listed = True
                share = 1 - min(1.0, prompt.num_left_tokens / max(1, entry.work.num_prompt_tokens))
            elif share := float(is_whole or entry.was_listed):
                del entries[placement_id]
            if entry.work.is_export:
                shares[placement_id] = share
        return shares

    def settle(self, placement_id: str) -> None:
        """Drop a placement whose outcome is known."""
        for entries in self._entries.values():
            entries.pop(placement_id, None)

    def forget(self, node_id: str) -> None:
        """Drop everything on a node that is gone."""
        self._entries.pop(node_id, None)

    def added_to(self, node_id: str, load: NodeLoad) -> NodeLoad:
        """Return `load` with the entries that no report covers added as waiting requests."""
        works = [entry.work for entry in self._unreported(node_id)]
        if not works:
            return load
        return replace(
            load,
            num_waiting=load.num_waiting + len(works),
            num_pending_prompt_tokens=load.num_pending_prompt_tokens + sum(work.num_prompt_tokens for work in works),
            num_free_blocks=load.num_free_blocks - sum(work.num_blocks for work in works),
            num_exports=load.num_exports + sum(work.is_export for work in works),
        )

    def queued_work(
        self,
        node_id: str,
        load: NodeLoad,
        load_at_seconds: float,
        shape: ModelShape,
        profile: NodeProfile,
        pass_tokens: int = 0,
    ) -> QueuedWork:
        """Return what a node has to compute. `pass_tokens` are positions that it computes in one pass; 0: unknown."""
        beside = cost.Beside(load.num_decoding, load.mean_context_tokens)
        entries = self._entries.get(node_id, {})
        unreported = self._unreported(node_id) if entries else []
        placed = [entry for entry in unreported if entry.work.num_prompt_tokens]
        listed_spans, weight = _listed_spans(load, entries)
        spans = [*listed_spans, *[(entry.work.prompt_begin, entry.work.prompt_end) for entry in placed]]
        join_seconds = 0.0
        if spans and load.num_decoding and not (load.queued_prompts and load.queued_prompts[0].num_done_tokens):
            join_seconds = cost.JOIN_STEPS * cost.step_seconds(shape, profile, *beside)  # for the pass that runs
        placed_at = [entry.placed_at_seconds for entry in placed]
        came_at = [0.0] * len(listed_spans) + [each - load_at_seconds for each in placed_at]
        seconds, last_pass = cost.queued_seconds(shape, profile, spans, pass_tokens, beside, came_at, join_seconds)
        num_listed, since = len(load.queued_prompts), seconds[len(listed_spans) :]
        listed = seconds[:num_listed] + [each * weight for each in seconds[num_listed : len(listed_spans)]]
        pass_seconds = cost.prefill_seconds(shape, profile, 0, pass_tokens) if pass_tokens and spans else 0.0
        since_then = list(zip(since, placed_at, strict=True))
        return QueuedWork(listed, load_at_seconds, since_then, pass_seconds, last_pass)

    def has_prompts(self, node_id: str, load: NodeLoad) -> bool:
        """Return whether a node had prompts to compute when it reported, or has got some since."""
        return load.num_pending_prompt_tokens > 0 or any(
            entry.work.num_prompt_tokens for entry in self._unreported(node_id)
        )

    def expires_at_seconds(self, node_id: str) -> float:
        """Return when the first of a node's entries that no report covers runs out; infinity if it has none."""
        entries = self._entries.get(node_id)
        if not entries:
            return math.inf
        placed = [entry.placed_at_seconds for entry in entries.values() if not entry.is_reported]
        return min(placed, default=math.inf) + self._ttl_seconds

    def _unreported(self, node_id: str) -> list[_Entry]:
        """Return the entries that no report covers, oldest first; those whose time is up go."""
        entries = self._entries.get(node_id)
        if not entries:
            return []
        unreported = [entry for entry in entries.values() if not entry.is_reported]
        earliest = self._clock() - self._ttl_seconds
        if not unreported or unreported[0].placed_at_seconds > earliest:
            return unreported
        for name, entry in list(entries.items()):
            if not entry.is_reported and entry.placed_at_seconds <= earliest:
                del entries[name]
        return [entry for entry in unreported if entry.placed_at_seconds > earliest]


def _listed_spans(load: NodeLoad, entries: Mapping[str, _Entry]) -> tuple[list[tuple[int, int]], float]:
    """Return what prompts of a report lack, by turns, equal ones for those not listed, and how many each of them is."""
    listed = list[tuple[int, int]]()
    num_listed_tokens = 0
    for prompt in load.queued_prompts:
        begin, end = prompt.num_done_tokens, prompt.num_done_tokens + prompt.num_left_tokens
        entry = entries.get(prompt.placement_id)
        if not begin and entry is not None:
            begin = min(entry.work.prompt_begin, end - 1)
        listed.append((begin, end))
        num_listed_tokens += prompt.num_left_tokens
    num_others = max(1, load.num_waiting - len(listed))
    mean_tokens = (load.num_pending_prompt_tokens - num_listed_tokens) // num_others
    num_shown = min(num_others, _MAX_UNLISTED) if mean_tokens > 0 else 0
    return listed + [(0, mean_tokens)] * num_shown, num_others / max(1, num_shown)


RECENT_SECONDS = 10.0
"""What is this old weighs 1/e in what a node did of late."""


class RecentRates(NamedTuple):
    """What placements of late come to."""

    arrivals_per_second: float = 0.0
    """Requests that came to decode."""
    arrival_seconds: float = 0.0
    """Mean time from a placement until it decodes."""
    prompts_per_second: float = 0.0
    """Prompts that the node is to compute."""
    prompt_share: float = 0.0
    """Part of its time that the node computes prompts, 0 to 1 and more where it falls behind."""


NO_RATES = RecentRates()
"""Nothing has been placed."""


class RecentWork:
    """What was placed on one node of late.

    The first placement tells no rate: it only says since when there are any. So of n that there were, n - 1 count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at_seconds = clock()
        self._updated_at_seconds = clock()
        self._num_arrivals = 0.0
        self._start_seconds = 0.0
        self._num_prompts = 0.0
        self._prompt_seconds = 0.0
        self._num_arrivals_ever = 0
        self._num_prompts_ever = 0

    def add_arrival(self, start_seconds: float) -> None:
        """Take a request that will decode there after so long."""
        self._fade()
        self._num_arrivals += 1
        self._num_arrivals_ever += 1
        self._start_seconds += start_seconds

    def add_prompt(self, seconds: float) -> None:
        """Take a prompt that the node computes in so long."""
        self._fade()
        self._num_prompts += 1
        self._num_prompts_ever += 1
        self._prompt_seconds += seconds

    def rates(self) -> RecentRates:
        """Return the rates of now."""
        self._fade()
        weight_seconds = self._weight_seconds()
        prompts_counted = _counted(self._num_prompts_ever)
        return RecentRates(
            arrivals_per_second=self._num_arrivals * _counted(self._num_arrivals_ever) / weight_seconds,
            arrival_seconds=self._start_seconds / self._num_arrivals if self._num_arrivals else 0.0,
            prompts_per_second=self._num_prompts * prompts_counted / weight_seconds,
            prompt_share=self._prompt_seconds * prompts_counted / weight_seconds,
        )

    def _weight_seconds(self) -> float:
        """Return the time over which what there is was gathered, old time faded as old work is."""
        age_seconds = self._clock() - self._began_at_seconds
        return max(1.0, RECENT_SECONDS * (1 - math.exp(-age_seconds / RECENT_SECONDS)))

    def _fade(self) -> None:
        now = self._clock()
        if now <= self._updated_at_seconds:
            return
        kept = math.exp((self._updated_at_seconds - now) / RECENT_SECONDS)
        self._updated_at_seconds = now
        self._num_arrivals *= kept
        self._start_seconds *= kept
        self._num_prompts *= kept
        self._prompt_seconds *= kept


def _counted(num_ever: int) -> float:
    """Return the part of so many placements that says how often they come."""
    return 1 - 1 / num_ever if num_ever else 0.0


MAX_ENTRIES = 16_384
"""Placements remembered; the oldest goes first. One whose outcome comes later is simply not learnt from."""


@value_class()
class PlacedRequest:
    """One placement."""

    candidate: Candidate
    num_prompt_tokens: int
    base_step_seconds: float
    """Estimated decode step without correction."""
    runner_up: CostEstimate | None = None
    """Terms of the next best candidate; None if there was none."""
    link_factor: float = 1.0
    """Correction that its transfer was estimated with."""
    prefill_factor: float = 1.0
    """By what those that decode beside it, and nodes on its device, were expected to slow its prompt."""

    def has_restored(self, num_cached_tokens: int) -> bool:
        """Return whether, of what the computing node took as cached, part was copied back to its device.

        The copy is then part of what is measured as computing the prompt.
        """
        num_restored = self.candidate.prefill_restored_tokens
        return num_restored > 0 and num_cached_tokens > self.candidate.prefill_cached_tokens - num_restored
