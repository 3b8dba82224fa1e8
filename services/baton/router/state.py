"""Everything the router knows, and the frozen picture of it that placement decides upon. One event loop owns it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass

from baton.capacity import cost
from baton.capacity.cost import CostEstimate, NodeProfile
from baton.capacity.kv_transfer import WirePolicy
from baton.capacity.placement import Candidate
from baton.capacity.snapshot import DECLARED_LINK, ClusterSnapshot, Link, PlacementRequest, blocks_for
from baton.kv.hashing import Adapter
from baton.router.calibration import Calibration, Comparison, ObservedDemand, compare
from baton.router.cluster.snapshots import LinkTable, NodeKnowledge, NodeSnapshots, frame_seconds
from baton.router.cluster.streams import StreamPath, StreamsInFlight
from baton.router.explanation.decision_log import MAX_RECORDS, DecisionLog, KnownLink, KnownNode
from baton.router.in_flight import MAX_ENTRIES, PlacedRequest, PlacedWork, PlacementLedger, RecentWork
from baton.router.nodes import LinkMeasurement, LoadReport, Node, NodeDescription, NodeTable, Outcome

LEAST_QUEUE_SECONDS = 0.005
"""Waits shorter than this, measured or estimated, teach nothing: they are parts of a pass."""
HIDDEN_SHARE = 0.5
"""A transfer of which less was exposed did not show the link's limit: it may raise the link's rate, not lower it."""


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Times and declared figures of the state."""

    stuck_seconds: float = 20.0
    """A node with work and no engine step for longer is no candidate."""
    silent_seconds: float = 5.0
    """A node without a load report for longer is no candidate."""
    assumed_ttl_seconds: float = 10.0
    """Longest time that a placement is counted without a report that covers it."""
    default_link: Link = DECLARED_LINK
    """Declared figures for pairs that nobody has measured."""
    wire_policy: WirePolicy = WirePolicy()
    """In what KV may travel."""


class RouterState:
    """Nodes, links, placements in flight and what outcomes have taught."""

    def __init__(self, clock: Callable[[], float], limits: StateLimits, *, max_placements: int = MAX_ENTRIES) -> None:
        """Know nobody."""
        self._default_link = limits.default_link
        self.nodes = NodeTable(clock, stuck_seconds=limits.stuck_seconds, silent_seconds=limits.silent_seconds)
        self.prefill_calibration: Calibration[str] = Calibration(clock)
        self.decode_calibration: Calibration[str] = Calibration(clock)
        self.link_calibration: Calibration[tuple[str, str]] = Calibration(clock)
        self.frame_calibration: Calibration[tuple[str, str]] = Calibration(clock)
        self.card_calibration: Calibration[str] = Calibration(clock)
        """Of network cards, beside the fastest link that was measured of each."""
        self.decisions = DecisionLog(max_records=min(MAX_RECORDS, max_placements))
        """The last ones, for those who ask why."""
        # Waits follow from what is queued: how far they lie from that is chance, and would make the next ones worse.
        self.queue_calibration: Calibration[str] = Calibration(clock, max_factor=1.0)
        self._clock = clock
        self.demand = ObservedDemand(clock)
        """What is asked of each model."""
        self._placed = PlacementLedger(clock, limits.assumed_ttl_seconds)
        self._streams = StreamsInFlight(clock)
        self._recent: dict[str, RecentWork] = {}
        self._max_placements = max_placements
        # Whose outcome is to come; the oldest goes first.
        self._awaited: OrderedDict[str, PlacedRequest] = OrderedDict()
        self._num_placements = 0
        self._wire_policy = limits.wire_policy
        self._links = LinkTable(
            clock,
            self.nodes,
            self.link_calibration,
            self.frame_calibration,
            default_link=limits.default_link,
            wire_policy=limits.wire_policy,
        )
        self._snapshots = NodeSnapshots(
            clock,
            self.nodes,
            NodeKnowledge(
                self.prefill_calibration,
                self.decode_calibration,
                self.queue_calibration,
                self.card_calibration,
                self._placed,
                self._streams,
                self._recent,
            ),
        )

    def register(self, description: NodeDescription) -> Node:
        """Add a node, without corrections if it has started again; raise SupersededError if its name is another's."""
        known = self.nodes.get(description.node_id)
        node = self.nodes.register(description)
        self._links.nodes_changed()
        self._snapshots.changed(description.node_id)
        if known is None or known.description.epoch != description.epoch:
            self._forget_learnt(description.node_id)
        return node

    def remove(self, node: Node) -> bool:
        """Drop a node, unless a later registration has replaced it; return whether it was dropped."""
        self._snapshots.changed(node.description.node_id)  # while it is known who shares its device
        is_removed = self.nodes.remove(node)
        if is_removed:
            self._links.nodes_changed()
            self._forget_work(node.description.node_id)
        return is_removed

    def report(self, node: Node, report: LoadReport) -> None:
        """Take a load report and stop counting the placements that it covers."""
        self.nodes.report(node, report)
        node_id = node.description.node_id
        shares = self._placed.reported(node_id, report.load, report.accepted_placement_ids)
        self._snapshots.changed(node_id)
        if not node.description.can_prefill:
            return
        for placement_id, share in shares.items():
            self._streams.computing(placement_id, share)

    def corrected_profile(self, description: NodeDescription) -> NodeProfile:
        """Return a node's profile with what outcomes have taught."""
        return description.profile.slowed(
            self.prefill_calibration.factor(description.node_id), self.decode_calibration.factor(description.node_id)
        )

    def snapshot(
        self, model_id: str, adapter: Adapter | None = None, *, holder_ids: Collection[str] = (), are_kept: bool = False
    ) -> ClusterSnapshot:
        """Return the nodes of a model and their links, these worked out when asked for. O(nodes).

        `holder_ids` are nodes from whose prefix caches something may be pulled; `are_kept`: queues and streams may be
        of an earlier moment, which `current` of the snapshot tells.
        """
        nodes = self._snapshots.of_model(model_id, adapter)
        return ClusterSnapshot(
            nodes=nodes if are_kept else tuple(map(self._snapshots.current, nodes)),
            default_link=self._default_link,
            links=self._links,
            holder_ids=frozenset(holder_ids),
            expected_output_tokens=self.demand.output_tokens(model_id),
            wire_policy=self._wire_policy,
            now_seconds=self._clock(),
            current=self._snapshots.current,
        )

    def measure_link(self, receiver: Node, measurement: LinkMeasurement) -> None:
        """Take a measured link; what was learnt is of another rate, unless it is the same again."""
        pair = (measurement.from_node_id, receiver.description.node_id)
        if receiver.links.get(pair[0]) != measurement:
            self.link_calibration.forget(pair.__eq__)
        self.nodes.measure_link(receiver, measurement)
        self._links.forget(pair)
        self._snapshots.changed(receiver.description.node_id, measurement.from_node_id)

    def link(self, sender: Node, decoder: Node) -> Link:
        """Return the way from one node to another, corrected, with the reason if they cannot exchange KV."""
        return self._links.link(sender, decoder)

    def known_nodes(self, candidate: Candidate) -> tuple[KnownNode, ...]:
        """Return what is known of a candidate's nodes: the decode node, then the one that sends to it, if one does."""
        node_ids = (candidate.decode_node_id, candidate.prefill_node_id or candidate.pull_node_id)
        nodes = [node for node_id in node_ids if (node := self.nodes.get(node_id)) is not None]
        return tuple(
            KnownNode(
                node.description.node_id,
                node.snapshot.load if node.snapshot else self._placed.added_to(node.description.node_id, node.load),
                self.nodes.report_age_seconds(node),
                self.prefill_calibration.reported(node.description.node_id),
                self.decode_calibration.reported(node.description.node_id),
            )
            for node in nodes
        )

    def known_link(self, candidate: Candidate) -> KnownLink | None:
        """Return what is known of the link that a candidate uses; None if it uses none."""
        pair = (candidate.prefill_node_id or candidate.pull_node_id, candidate.decode_node_id)
        sender, decoder = self.nodes.get(pair[0]), self.nodes.get(pair[1])
        if sender is None or decoder is None:
            return None
        return KnownLink(*pair, self._links[pair], self.link_calibration.reported(pair))

    def account(
        self, placement_id: str, candidate: Candidate, request: PlacementRequest, runner_up: CostEstimate | None = None
    ) -> None:
        """Count a placement on its nodes until reports cover it, and remember it until its outcome."""
        decoder = self.nodes.get(candidate.decode_node_id)
        estimate = candidate.estimate
        if decoder is None or estimate is None:
            return
        num_cached = candidate.decode_cached_tokens + candidate.pulled_tokens
        num_written = request.num_prompt_tokens - candidate.decode_cached_tokens + candidate.decode_restored_tokens
        num_blocks = blocks_for(decoder.description, num_written + round(estimate.expected_output_tokens))
        begin = num_cached if candidate.is_local else request.num_prompt_tokens
        work = PlacedWork(begin, request.num_prompt_tokens, num_blocks)
        self._placed.add(placement_id, candidate.decode_node_id, work)
        prefiller = self.nodes.get(candidate.prefill_node_id)
        if prefiller:
            begin = candidate.prefill_cached_tokens
            num_written = request.num_prompt_tokens - begin + candidate.prefill_restored_tokens
            num_blocks = blocks_for(prefiller.description, num_written)
            work = PlacedWork(begin, request.num_prompt_tokens, num_blocks, is_export=True)
            self._placed.add(placement_id, candidate.prefill_node_id, work)
        self._account_stream(placement_id, candidate, estimate)
        self.demand.add(decoder.description.model_id, num_prompt_tokens=request.num_prompt_tokens)
        self._num_placements += 1
        for node in (decoder, prefiller):
            if node is not None:
                node.last_used = self._num_placements
        self._snapshots.changed(*_node_ids(candidate))
        computing_id = candidate.prefill_node_id or candidate.decode_node_id
        self._recent_of(candidate.decode_node_id).add_arrival(estimate.start_seconds)
        self._recent_of(computing_id).add_prompt(estimate.prefill_seconds)
        sender_id = candidate.pull_node_id or candidate.prefill_node_id
        alone = _alone_seconds(prefiller or decoder, begin, request.num_prompt_tokens)
        placed = PlacedRequest(
            candidate,
            request.num_prompt_tokens,
            base_step_seconds=estimate.step_seconds / self.decode_calibration.factor(candidate.decode_node_id),
            runner_up=runner_up,
            prefill_factor=estimate.prefill_seconds / alone / self.prefill_calibration.factor(computing_id),
            link_factor=self.link_calibration.factor((sender_id, candidate.decode_node_id)),
        )
        self._awaited[placement_id] = placed
        if len(self._awaited) > self._max_placements:
            self._awaited.popitem(last=False)

    def _recent_of(self, node_id: str) -> RecentWork:
        return self._recent.setdefault(node_id, RecentWork(self._clock))

    def _account_stream(self, placement_id: str, candidate: Candidate, estimate: CostEstimate) -> None:
        pair = (candidate.pull_node_id or candidate.prefill_node_id, candidate.decode_node_id)
        link = self._links.get(pair)
        if link is None or not candidate.kv_bytes:
            return
        computing = 0.0 if candidate.pull_node_id else estimate.prefill_seconds
        path = StreamPath(*pair, link.bytes_per_second, *self._snapshots.card_rates(*pair))
        self._streams.add(placement_id, path, candidate.kv_bytes, compute_seconds=computing)

    def settle(self, outcome: Outcome) -> Comparison | None:
        """Compare an outcome with its estimate and correct nodes, link and output length; unknown ones are left out.

        Returns how they compare; None if the placement is not known or something else happened.
        """
        self.decisions.settle(outcome)
        self._placed.settle(outcome.placement_id)
        self._streams.end(outcome.placement_id)
        placed = self._awaited.pop(outcome.placement_id, None)
        self._snapshots.changed(*_node_ids(outcome), *(_node_ids(placed.candidate) if placed else ()))
        decoder = self.nodes.get(outcome.decode_node_id)
        if decoder:
            self.demand.add(decoder.description.model_id, num_output_tokens=outcome.num_completion_tokens)
        if placed is None or decoder is None:
            return None
        self._learn_prefill(placed, outcome)
        self._learn_link(placed, outcome)
        if outcome.num_completion_tokens > 1 and not (outcome.num_preemptions or outcome.num_breaks):
            # The first token's wait for KV and for joining is no decode step's.
            steps_seconds = outcome.decode_seconds - outcome.exposed_seconds - outcome.join_seconds
            measured = steps_seconds / (outcome.num_completion_tokens - 1)
            expected = placed.base_step_seconds * _batch_share(decoder, placed, outcome)
            self.decode_calibration.add(outcome.decode_node_id, measured, expected)
        return compare(placed, outcome)

    def _learn_prefill(self, placed: PlacedRequest, outcome: Outcome) -> None:
        computing = self.nodes.get(outcome.prefill_node_id or outcome.decode_node_id)
        if computing is None or outcome.num_preemptions or outcome.num_breaks:
            return
        if placed.has_restored(outcome.prefill_cached_tokens) or not (outcome.prefill_seconds or outcome.queue_seconds):
            return
        num_cached = min(outcome.prefill_cached_tokens + outcome.pulled_tokens, placed.num_prompt_tokens - 1)
        estimated = placed.prefill_factor * _alone_seconds(computing, num_cached, placed.num_prompt_tokens)
        node_id = computing.description.node_id
        self.prefill_calibration.add(node_id, outcome.prefill_seconds, estimated)
        estimate = placed.candidate.estimate
        is_as_placed = node_id == (placed.candidate.prefill_node_id or placed.candidate.decode_node_id)
        if estimate and is_as_placed and max(outcome.queue_seconds, estimate.queue_seconds) > LEAST_QUEUE_SECONDS:
            # With the prompt itself: a short wait is nothing beside it.
            own = estimate.prefill_seconds
            self.queue_calibration.add(node_id, outcome.queue_seconds + own, estimate.queue_seconds + own)

    def _learn_link(self, placed: PlacedRequest, outcome: Outcome) -> None:
        """Learn of the link, or of the network card where other links held a stream up there.

        Earlier streams of the link only have it wait. What a hidden one took beyond its bytes is what its frames took
        to be sent and received, each by itself.
        """
        held_up = self._streams.held_up(outcome.placement_id)
        sender_id = outcome.pull_node_id or outcome.prefill_node_id
        sender, receiver = self.nodes.get(sender_id), self.nodes.get(outcome.decode_node_id)
        is_repaired = bool(outcome.fallback_reason or outcome.num_breaks)
        if sender_id == outcome.decode_node_id or is_repaired or sender is None or receiver is None:
            return
        pair = (sender_id, outcome.decode_node_id)
        candidate = placed.candidate
        is_expected = sender_id in (candidate.pull_node_id, candidate.prefill_node_id)
        if candidate.estimate is None or not candidate.kv_bytes or not is_expected:
            return
        # From a node that only decodes prefixes alone travel: how long its cache takes to read is learnt with the link.
        is_only_pulled = outcome.pull_node_id and not sender.description.can_prefill
        measured = outcome.pull_seconds if is_only_pulled else outcome.transfer_seconds
        share = outcome.kv_bytes / candidate.kv_bytes
        was_hidden = not outcome.pull_node_id and outcome.exposed_seconds < HIDDEN_SHARE * outcome.transfer_seconds
        link = self.link(sender, receiver)
        beyond_seconds = outcome.transfer_seconds - outcome.kv_bytes / link.bytes_per_second
        is_faster = held_up is not None and measured < share * held_up.busy_seconds
        if is_only_pulled:
            estimated = share * candidate.estimate.transfer_seconds / placed.link_factor
            if measured < estimated or not held_up:
                self.link_calibration.add(pair, measured, estimated)
        elif held_up and held_up.bytes_per_second and (held_up.is_bound if is_faster else not was_hidden):
            if usual := self.nodes.send_bytes_per_second(sender_id):
                estimated = share * held_up.busy_seconds * held_up.bytes_per_second / usual
                self.card_calibration.add(sender_id, measured, estimated)
            self._snapshots.changed(*pair)
        elif was_hidden and beyond_seconds > 0:
            if outcome.kv_frames and not held_up:
                usual_seconds = frame_seconds(link.round_trip_seconds)
                self.frame_calibration.add(pair, beyond_seconds / outcome.kv_frames, usual_seconds)
        elif not held_up or (is_faster and not held_up.is_bound):  # as if no other stream were there
            usual = link.bytes_per_second * self.link_calibration.factor(pair)
            packing = share * candidate.wire.pack_seconds if candidate.wire else 0.0
            self.link_calibration.add(pair, measured, max(outcome.kv_bytes / usual, packing))
        self._links.forget(pair)

    def _forget_work(self, node_id: str) -> None:
        self._placed.forget(node_id)
        self._streams.forget(node_id)
        self._recent.pop(node_id, None)

    def _forget_learnt(self, node_id: str) -> None:
        self._forget_work(node_id)
        of_nodes = self.queue_calibration, self.prefill_calibration, self.decode_calibration, self.card_calibration
        for of_node in of_nodes:
            of_node.forget(node_id.__eq__)
        for of_link in (self.link_calibration, self.frame_calibration):
            of_link.forget(lambda pair: node_id in pair)


def _node_ids(used: Candidate | Outcome) -> tuple[str, str, str]:
    return used.decode_node_id, used.prefill_node_id, used.pull_node_id


def _batch_share(node: Node, placed: PlacedRequest, outcome: Outcome) -> float:
    """Return a step of the batch that a request met, over one of the batch expected: who comes later slows no node."""
    estimate, told = placed.candidate.estimate, node.description
    met = min(outcome.mean_batch_size, told.max_batch_size)  # whatever a node says
    if estimate is None or not (met and estimate.batch_size):
        return 1.0
    context = placed.num_prompt_tokens + outcome.num_completion_tokens / 2
    expected_seconds = cost.step_seconds(told.shape, told.profile, estimate.batch_size, context)
    return cost.step_seconds(told.shape, told.profile, met, context) / expected_seconds


def _alone_seconds(node: Node, num_cached: int, num_prompt_tokens: int) -> float:
    told = node.description
    return cost.prefill_seconds(told.shape, told.profile, num_cached, num_prompt_tokens, told.max_step_tokens)
