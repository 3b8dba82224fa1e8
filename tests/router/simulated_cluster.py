"""A cluster in virtual time: nodes that deal passes out as the engine does, links that streams share, a real router."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from baton.capacity.cost import MEASURED_TERMS, SHORT_SHARE, overtaking
from baton.capacity.hardware import PRESETS, StepSpan, step_seconds
from baton.capacity.placement import Candidate, Decision, place
from baton.capacity.snapshot import ClusterSnapshot, NodeLoad, PlacementRequest, QueuedPrompt
from baton.decode.measurement import LinkMeter, ReceptionClock
from baton.engine.scheduling.admission import short_tokens
from baton.engine.scheduling.shares import PromptDemand, share_tokens
from baton.engine.scheduling.step import StepBudget
from baton.engine.step_cost import StepCostModel, StepWork
from baton.router.calibration import Comparison
from baton.router.nodes import LinkMeasurement, LoadReport, NodeDescription, Outcome
from baton.router.state import RouterState, StateLimits
from router.samples import MAC, MODEL

PASS_TOKENS = 512
FRAMES_PER_PASS = 8
"""Pieces in which the KV of a pass becomes ready, evenly over it: groups of layers."""
CALL_SECONDS = 0.003
REPORT_SECONDS, CHANGE_SECONDS = 0.5, 0.1
PLANNED_SHARE = 0.8
"""Part of a pass after which the next one is planned (`engine/execution/pipeline.py`): who comes later misses it."""

Chooser = Callable[[ClusterSnapshot, PlacementRequest], Decision]


class Arrival(NamedTuple):
    """A request of a trace."""

    seconds: float
    num_prompt_tokens: int
    num_output_tokens: int


class SimulatedNode(NamedTuple):
    """A node as it is, which its profile does not quite tell."""

    node_id: str
    role: str
    hardware: str
    slowness: float = 1.0
    """Its passes take so many times what the profile says."""
    max_batch_size: int = 64


@dataclass(eq=False)
class _Request:
    arrival: Arrival
    number: int
    """Of its placement."""
    candidate: Candidate
    num_done: int = 0
    is_admitted: bool = False
    num_outputs: int = 0
    received_at: float = 0.0
    computed_seconds: float = 0.0
    first_token_at: float = 0.0
    queue_seconds: float = 0.0
    ready_at: float = 0.0
    first_pass: int = 0
    """Number of the first pass of a node that it can be in."""
    clock: ReceptionClock = field(default_factory=lambda: ReceptionClock(0.0))
    num_frames: int = 0
    frames: list[tuple[float, float, int]] = field(default_factory=list)
    """Of its stream: bytes left of the frame, when it was ready, its bytes."""

    @property
    def placement_id(self) -> str:
        return f"p{self.number}"

    @property
    def context(self) -> int:
        return self.arrival.num_prompt_tokens + self.num_outputs


@dataclass(eq=False)
class _Node:
    described: SimulatedNode
    description: NodeDescription
    costs: StepCostModel
    prompts: list[_Request] = field(default_factory=list)
    decoding: list[_Request] = field(default_factory=list)
    receiving: list[_Request] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    is_computing: bool = False
    reported_at: float = -1.0
    began_at: float = 0.0
    """When the pass that runs did."""
    planned_at: float = 0.0
    """When the one behind it is planned."""
    is_report_due: bool = False
    num_steps: int = 0


class Result(NamedTuple):
    """What became of one request."""

    arrival: Arrival
    candidate: Candidate
    outcome: Outcome
    comparison: Comparison | None
    total_seconds: float
    """From its arrival to its last token."""
    start_seconds: float
    """From its arrival until the pass of its second token began."""


class SimulatedCluster:
    """Runs a trace through a router's state and nodes.

    Args:
        nodes: The nodes.
        links: Bytes per second by (sender, receiver); what is missing has `link_rate`.
        link_rate: Of all other pairs, and of every network card.
        noise: Standard deviation of the logarithm of a pass's time.
        seed: Of the noise.
        choose: Decides; by default `place`.
    """

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        *,
        links: dict[tuple[str, str], float] | None = None,
        link_rate: float = 1.25e9,
        noise: float = 0.03,
        seed: int = 0,
        choose: Chooser = place,
    ) -> None:
        self.now = 0.0
        self.state = RouterState(lambda: self.now, StateLimits())
        self.results: list[Result] = []
        self._random = random.Random(seed)
        self._noise = noise
        self._choose = choose
        self._links = links or {}
        self._link_rate = link_rate
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count()
        self._streams: list[_Request] = []
        self._meters = defaultdict[tuple[str, str], LinkMeter](LinkMeter)
        self._streams_at = 0.0
        self._stream_version = 0
        self._num_left = 0
        self.nodes = {node.node_id: self._register(node) for node in nodes}
        for receiver in nodes:
            registered = self.state.nodes.get(receiver.node_id)
            assert registered is not None
            for sender in nodes:
                if receiver.role != "prefill" and sender is not receiver:
                    rate = self._rate(sender.node_id, receiver.node_id)
                    self.state.measure_link(registered, LinkMeasurement(sender.node_id, rate, 0.0005))

    def run(self, trace: Sequence[Arrival]) -> list[Result]:
        """Run a trace to its end, and return what became of each request in order of ends."""
        self._num_left = len(trace)
        for arrival in trace:
            self._at(arrival.seconds, lambda arrival=arrival: self._arrive(arrival))  # type: ignore[misc]
        for node in self.nodes.values():
            self._report(node)
        while self._num_left:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self.results

    def change_hardware(self, at_seconds: float, hardware: Mapping[str, str]) -> None:
        """Have nodes compute as other presets from a moment on, by node id; their profiles stay as they were."""

        def change() -> None:
            for node_id, preset in hardware.items():
                self.nodes[node_id].described = self.nodes[node_id].described._replace(hardware=preset)

        self._at(at_seconds, change)

    def _register(self, node: SimulatedNode) -> _Node:
        description = replace(
            MAC,
            node_id=node.node_id,
            role=node.role,
            profile=PRESETS[node.hardware].profile(),
            num_blocks=100_000,
            max_batch_size=node.max_batch_size,
            max_step_tokens=PASS_TOKENS,
        )
        self.state.register(description)
        reading_seconds = description.shape.weight_bytes / description.profile.decode_bytes_per_second
        return _Node(node, description, StepCostModel(reading_seconds, PASS_TOKENS))

    def _rate(self, sender_id: str, receiver_id: str) -> float:
        return self._links.get((sender_id, receiver_id), self._link_rate)

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), action))

    def _arrive(self, arrival: Arrival) -> None:
        request = PlacementRequest(arrival.num_prompt_tokens, max(1, arrival.num_output_tokens))
        decision = self._choose(self.state.snapshot(MODEL), request)
        choice = decision.choice
        assert choice is not None
        placed = _Request(arrival, next(self._ids), choice)
        self.state.account(placed.placement_id, choice, request, decision.runner_up)
        self._at(self.now + CALL_SECONDS, lambda: self._accept(placed))

    def _accept(self, request: _Request) -> None:
        decoder = self.nodes[request.candidate.decode_node_id]
        decoder.accepted.append(request.placement_id)
        if request.candidate.is_local:
            self._queue(decoder, request)
        else:
            decoder.receiving.append(request)
            self._changed(decoder)
            prefiller = self.nodes[request.candidate.prefill_node_id]
            request.clock.begin(self._meters[prefiller.description.node_id, decoder.description.node_id])
            self._at(self.now + CALL_SECONDS / 2, lambda: self._take_prompt(prefiller, request))

    def _take_prompt(self, node: _Node, request: _Request) -> None:
        node.accepted.append(request.placement_id)
        self._queue(node, request)

    def _queue(self, node: _Node, request: _Request) -> None:
        request.received_at = self.now
        insort(node.prompts, request, key=lambda each: each.number)
        self._came(node, request)
        self._changed(node)
        self._compute(node)

    def _came(self, node: _Node, request: _Request) -> None:
        """Note in which pass a request is at the earliest that comes, or whose KV does, from elsewhere."""
        request.first_pass = node.num_steps
        if node.is_computing:
            request.first_pass += 1 if self.now <= node.planned_at else 2

    def _compute(self, node: _Node) -> None:
        """Begin the next pass."""
        room = node.described.max_batch_size - len(node.decoding) - len(node.receiving)
        if node.described.role == "prefill":
            room = node.described.max_batch_size
        prompts, decoding = node.prompts[: max(0, room)], list(node.decoding)
        if node.is_computing or not (prompts or decoding):
            return
        if any(each.first_pass <= node.num_steps for each in (*prompts, *decoding)):
            prompts, decoding = (
                [each for each in group if each.first_pass <= node.num_steps] for group in (prompts, decoding)
            )
        for each in decoding:
            each.ready_at = each.ready_at or self.now
        granted = self._grant(node, prompts, decoding)
        spans = [StepSpan(each.context + 1, 1) for each in decoding]
        spans += [StepSpan(each.num_done + num, num) for each, num in zip(prompts, granted, strict=True) if num]
        seconds = step_seconds(PRESETS[node.described.hardware], node.description.shape, spans)
        seconds *= node.described.slowness * math.exp(self._random.gauss(0, self._noise))
        shares = list(zip(prompts, granted, strict=True))
        node.is_computing, node.began_at, node.planned_at = True, self.now, self.now + PLANNED_SHARE * seconds
        for request, num in shares:
            if num and not request.candidate.is_local:
                num_bytes = num * node.description.shape.kv_bytes_per_token / FRAMES_PER_PASS
                for frame in range(1, FRAMES_PER_PASS + 1):
                    ready = self.now + seconds * frame / FRAMES_PER_PASS
                    self._at(ready, lambda request=request, num_bytes=num_bytes: self._ready(request, num_bytes))  # type: ignore[misc]
        work = _work((each.context_tokens, each.computed_tokens) for each in spans)
        node.costs.note(work, seconds, has_prompts=len(spans) > len(decoding))
        self._at(self.now + seconds, lambda: self._computed(node, decoding, shares, seconds))

    def _grant(self, node: _Node, prompts: Sequence[_Request], decoding: Sequence[_Request]) -> list[int]:
        """Share a pass: newcomers get a part of what there is, then all that is left, as admission deals it out."""
        budget = _budget(node, prompts, decoding)
        begun, newcomers = ([each for each in prompts if each.is_admitted is is_begun] for is_begun in (True, False))
        left, granted = PASS_TOKENS - len(decoding), dict[_Request, int]()
        for each in [each for each in newcomers if begun and each.number < begun[0].number]:
            newcomers.remove(each)
            each.is_admitted = True
            granted[each] = min(_left(each), left - sum(granted.values()))
        num_dealt, num_ended = sum(granted.values()), sum(num == _left(each) for each, num in granted.items())
        if num_dealt:
            left = budget.room_behind(len(decoding) + num_dealt, num_ended)
        kept = _kept(newcomers, begun, short_tokens(left)) if begun else {}
        room = left - sum(kept.values())
        demands = [PromptDemand(_left(each), _left(each), 0) for each in begun]
        num_before = len(decoding) + num_dealt
        dealt = share_tokens(
            demands, room, lambda dealt, ended: budget.room_behind(num_before + dealt, num_ended + ended)
        )
        granted |= dict(zip(begun, dealt, strict=True))
        for index, each in enumerate(newcomers):
            each.is_admitted = True
            num_ended = sum(num == _left(other) for other, num in granted.items())
            kept.pop(each, None)
            part = budget.room_behind(len(decoding) + sum(granted.values()), num_ended) - sum(kept.values())
            if _left(each) > part > 0 and not kept:
                kept = _kept(newcomers[index + 1 :], [each], short_tokens(part))
                part -= sum(kept.values())
            granted[each] = max(0, min(_left(each), part))
        return [granted[each] for each in prompts]

    def _computed(
        self, node: _Node, decoding: Sequence[_Request], shares: Sequence[tuple[_Request, int]], seconds: float
    ) -> None:
        node.num_steps += 1
        cost = node.costs.cost
        assert cost is not None
        whole = cost.seconds(_work((request.num_done + num, num) for request, num in shares))
        for request, num in shares:
            if num:
                before, request.num_done = request.num_done, request.num_done + num
                until_seconds, before_seconds = (
                    cost.alone_seconds(0, done, PASS_TOKENS) for done in (request.num_done, before)
                )
                request.computed_seconds += seconds * (until_seconds - before_seconds) / whole
                if not _left(request):
                    self._prompt_done(node, request)
        for request in decoding:
            request.num_outputs += 1
            if request.num_outputs >= request.arrival.num_output_tokens:
                node.decoding.remove(request)
                self._finish(node, request)
        node.is_computing = False
        self._compute(node)

    def _prompt_done(self, node: _Node, request: _Request) -> None:
        node.prompts.remove(request)
        self._changed(node)
        request.first_token_at = self.now
        request.queue_seconds = max(0.0, self.now - request.received_at - request.computed_seconds)
        request.num_outputs = 1
        if request.candidate.is_local:
            self._decode(node, request)
        else:
            self._check_received(request)

    def _decode(self, node: _Node, request: _Request) -> None:
        if request.num_outputs >= request.arrival.num_output_tokens:
            request.ready_at = self.now
            self._finish(node, request)
            return
        node.decoding.append(request)
        self._changed(node)
        self._compute(node)

    def _ready(self, request: _Request, num_bytes: float) -> None:
        self._advance_streams()
        request.frames.append((num_bytes, self.now, round(num_bytes)))
        if request not in self._streams:
            self._streams.append(request)
        self._plan_streams()

    def _shares(self) -> dict[_Request, float]:
        """Return the rate of each stream that moves: the first of a pair of nodes, of which each resource is shared."""
        resources: dict[tuple[str, ...], tuple[float, list[_Request]]] = {}
        first: dict[tuple[str, str], _Request] = {}
        for stream in sorted(self._streams, key=lambda each: each.received_at):
            first.setdefault((stream.candidate.prefill_node_id, stream.candidate.decode_node_id), stream)
        for stream in first.values():
            sender, receiver = stream.candidate.prefill_node_id, stream.candidate.decode_node_id
            for key, rate in (
                (("out", sender), max(self._rate(sender, each) for each in self.nodes)),
                (("in", receiver), max(self._rate(each, receiver) for each in self.nodes)),
                ((sender, receiver), self._rate(sender, receiver)),
            ):
                resources.setdefault(key, (rate, []))[1].append(stream)
        rates: dict[_Request, float] = {}
        while len(rates) < len(first):
            rate, key = min(
                (
                    (full - sum(rates.get(each, 0.0) for each in users)) / sum(each not in rates for each in users),
                    key,
                )
                for key, (full, users) in resources.items()
                if any(each not in rates for each in users)
            )
            for each in resources[key][1]:
                rates.setdefault(each, rate)
        return rates

    def _advance_streams(self) -> None:
        """Move the frames on by the time since then."""
        rates, elapsed = self._shares(), self.now - self._streams_at
        self._streams_at = self.now
        for stream in tuple(self._streams):
            num_bytes, ready, frame_bytes = stream.frames[0]
            num_bytes -= rates.get(stream, 0.0) * elapsed
            stream.frames[0] = (num_bytes, ready, frame_bytes)
            if num_bytes < 1.0:
                stream.frames.pop(0)
                stream.num_frames += 1
                stream.clock.frame_arrived(self.now, ready, frame_bytes)
                if not stream.frames:
                    self._streams.remove(stream)
                    self._check_received(stream)

    def _check_received(self, request: _Request) -> None:
        """Begin to decode when all has been computed and has come."""
        node = self.nodes[request.candidate.decode_node_id]
        if request.first_token_at and not request.frames and request in node.receiving:
            node.receiving.remove(request)
            self._came(node, request)
            self._decode(node, request)

    def _plan_streams(self) -> None:
        self._stream_version += 1
        version = self._stream_version
        if not self._streams:
            return
        rates = self._shares()
        soonest = min(stream.frames[0][0] / rate for stream, rate in rates.items())
        self._at(self.now + max(soonest, 1e-9), lambda: self._move_streams(version))

    def _move_streams(self, version: int) -> None:
        if version == self._stream_version:
            self._advance_streams()
            self._plan_streams()

    def _finish(self, node: _Node, request: _Request) -> None:
        self._changed(node)
        self._num_left -= 1
        candidate, arrival = request.candidate, request.arrival
        exposed = 0.0 if candidate.is_local else max(0.0, request.clock.last_arrival - request.first_token_at)
        seconds = dict.fromkeys(MEASURED_TERMS, 0.0) | {
            "queue": request.queue_seconds,
            "prefill": request.computed_seconds,
            "transfer": request.clock.busy_seconds,
            "exposed": exposed,
            "decode": self.now - request.first_token_at,
        }
        outcome = Outcome(
            placement_id=request.placement_id,
            decode_node_id=candidate.decode_node_id,
            prefill_node_id=candidate.prefill_node_id or candidate.decode_node_id,
            prefill_cached_tokens=0,
            kv_bytes=candidate.kv_bytes,
            kv_frames=request.num_frames,
            num_completion_tokens=arrival.num_output_tokens,
            num_preemptions=0,
            fallback_reason="",
            **{f"{term}_seconds": value for term, value in seconds.items()},
        )
        comparison = self.state.settle(outcome)
        start = request.ready_at - arrival.seconds
        self.results.append(Result(arrival, candidate, outcome, comparison, self.now - arrival.seconds, start))

    def _changed(self, node: _Node) -> None:
        if not node.is_report_due:
            node.is_report_due = True
            self._at(max(self.now, node.reported_at + CHANGE_SECONDS), lambda: self._report(node))

    def _report(self, node: _Node) -> None:
        if not node.is_report_due and self.now < node.reported_at + REPORT_SECONDS * 0.99:
            return
        node.is_report_due, node.reported_at = False, self.now
        begun = [each for each in node.prompts if each.is_admitted]
        running, waiting = [*node.decoding, *begun], [each for each in node.prompts if not each.is_admitted]
        load = NodeLoad(
            num_waiting=len(waiting) + len(node.receiving),
            num_running=len(running),
            num_decoding=len(node.decoding),
            num_exports=sum(not each.candidate.is_local for each in node.prompts),
            num_pending_prompt_tokens=sum(_left(each) for each in node.prompts),
            num_free_blocks=100_000 - sum(each.context // 16 for each in (*running, *node.receiving)),
            mean_context_tokens=sum(each.context for each in node.decoding) / max(1, len(node.decoding)),
            queued_prompts=tuple(
                QueuedPrompt(each.placement_id, each.num_done, _left(each)) for each in (*begun, *waiting)
            ),
        )
        report = LoadReport(
            load,
            node.num_steps,
            is_draining=False,
            accepted_placement_ids=tuple(node.accepted),
            age_seconds=self.now - node.began_at if node.is_computing else 0.0,
        )
        node.accepted.clear()
        registered = self.state.nodes.get(node.description.node_id)
        assert registered is not None
        self.state.report(registered, report)
        self._at(self.now + REPORT_SECONDS, lambda: self._report(node))


def _work(spans: Iterable[tuple[int, int]]) -> StepWork:
    """Return the work of a pass: contexts after it, and the positions of each that it computes."""
    num_tokens = num_pairs = 0
    for context, num in spans:
        num_tokens, num_pairs = num_tokens + num, num_pairs + num * (2 * context - num) // 2
    return StepWork(num_tokens, num_pairs)


def _budget(node: _Node, prompts: Sequence[_Request], decoding: Sequence[_Request]) -> StepBudget:
    """Return what a pass may hold, as `Scheduler` tells it."""
    cost, filled = node.costs.cost, min(PASS_TOKENS, len(decoding) + sum(map(_left, prompts)))
    if cost is None or not cost.token_seconds:
        return StepBudget(PASS_TOKENS)
    work = _work((each.context + 1, 1) for each in decoding)
    return StepBudget(PASS_TOKENS, filled, len(node.prompts), *cost.tokens_beside(work))


def _kept(newcomers: Sequence[_Request], before: Sequence[_Request], limit: int) -> dict[_Request, int]:
    """Return the positions that are kept for newcomers, as `BatchAdmission.newcomer_tokens` does."""
    pending, kept = list(map(_left, before)), dict[_Request, int]()
    num_before, num_taken = sum(pending), sum(pending[index] for index in overtaking(pending))
    for each in newcomers:
        num_before += _left(each)
        if num_taken + _left(each) < SHORT_SHARE * num_before:
            kept[each] = max(0, min(_left(each), limit - num_taken))
            num_taken += _left(each)
    return kept


def _left(request: _Request) -> int:
    return request.arrival.num_prompt_tokens - request.num_done


def random_trace(
    count: int,
    per_second: float,
    *,
    seed: int = 0,
    prompt_tokens: Sequence[int] = (100, 300, 1000, 2000, 4000, 8000),
    output_tokens: Sequence[int] = (16, 32, 64, 128),
) -> list[Arrival]:
    """Return Poisson arrivals of a random mix."""
    generator, now = random.Random(seed), 0.0
    trace = list[Arrival]()
    for _ in range(count):
        now += generator.expovariate(per_second)
        prompt = int(generator.choice(prompt_tokens) * generator.uniform(0.7, 1.3))
        trace.append(Arrival(now, prompt, generator.choice(output_tokens)))
    return trace
