"""What nodes tell the router, the nodes that are registered, and how fresh what is known of them is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from baton.capacity.cost import MEASURED_TERMS, QueuedWork
from baton.capacity.kv_transfer import WireAbility
from baton.capacity.snapshot import DRAINING, NodeLoad, NodeRole, NodeSnapshot, TierRates, can_decode, can_prefill
from baton.capacity.value_class import value_class
from baton.errors import SupersededError
from baton.internal.v1 import node_pb2
from baton.kv.hashing import Adapter
from baton.kv.kv_format import KvLayout
from baton.v1 import generation_pb2


@value_class(kw_only=True)
class NodeDescription(NodeSnapshot):
    """One node as it registered: what placement reads of it, and what else it is."""

    load: NodeLoad = NodeLoad()
    """No work: what a node does is in its reports."""
    epoch: int
    """Tells one start of the process from another; of one machine, later ones have greater epochs."""
    address: str
    """host:port of its gRPC server."""
    model_id: str
    layout: KvLayout
    fast_address: str = ""
    """host:port of its fast path for KV; empty: it offers none."""
    wire_abilities: tuple[WireAbility, ...] = ()
    """Number formats besides its cache's own in which it can send or receive KV."""
    adapters: tuple[Adapter, ...] = ()
    """What it has loaded besides the model."""
    transfer_key: bytes = field(default=b"", compare=False, repr=False)
    """By which it checks what is granted to transfers; empty: none is granted."""
    message: node_pb2.NodeDescription | None = field(default=None, compare=False, repr=False)
    """As it came (protos/baton/internal/v1/node.proto): what the router shows of it."""

    def lack_of(self, adapter: Adapter | None) -> str:
        """Return why it cannot compute with an adapter; empty if it can, or none is wanted."""
        if adapter is None or adapter in self.adapters:
            return ""
        if any(own.name == adapter.name for own in self.adapters):
            return f"adapter {adapter.name} has other weights"
        return f"adapter {adapter.name} is not loaded"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a node is doing (protos/baton/internal/v1/node.proto, LoadReport)."""

    load: NodeLoad
    step_count: int
    """Engine steps since start."""
    is_draining: bool
    accepted_placement_ids: tuple[str, ...] = ()
    """Placements whose requests it has accepted since the last report."""
    age_seconds: float = 0.0
    """How long before it came the load was so."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from below its device."""
    is_sparing_memory: bool = False
    """Whether it admits nobody beside others, for its memory is short."""
    message: node_pb2.LoadReport | None = field(default=None, compare=False, repr=False)
    """As it came: what the router shows of it, its machine's sensors among it."""

    @property
    def has_work(self) -> bool:
        """Return whether the engine ought to be stepping. A request that waits for KV from elsewhere needs no step."""
        return self.load.num_running > 0 or self.load.num_pending_prompt_tokens > 0


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """Rate of the link into the reporting decode node."""

    from_node_id: str
    bytes_per_second: float
    """Payload rate, above 0."""
    round_trip_seconds: float
    """Round-trip time of an empty call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a placed request, measured (protos/baton/v1/generation.proto, PlacementSummary)."""

    placement_id: str
    """Router's name for the decision."""
    decode_node_id: str
    prefill_node_id: str
    """Node that computed the prompt; the decode node where it did so itself."""
    prefill_cached_tokens: int
    """Prompt tokens that were not computed for it, because the computing node had them or computed them for another."""
    kv_bytes: int
    """KV bytes received."""
    kv_frames: int
    queue_seconds: float
    """Until the first token, but for the prompt's own computation and pull."""
    prefill_seconds: float
    """What the prompt's own computation took."""
    transfer_seconds: float
    """Time that the link was busy with this request."""
    exposed_seconds: float
    """Part of it after the first token existed."""
    decode_seconds: float
    """From the first to the last token."""
    num_completion_tokens: int
    """Tokens generated; 0: not reported."""
    num_preemptions: int
    """Times that it was computed again for want of memory."""
    fallback_reason: str
    """Why a planned remote prefill was given up; empty if it was not."""
    num_breaks: int = 0
    """KV streams that broke: its times are then those of the repair, and say nothing of node or link."""
    pull_node_id: str = ""
    """Node from whose cache the prompt's beginning was asked; empty: none. Bytes and transfer are then of that."""
    pulled_tokens: int = 0
    """Prompt tokens that came from there."""
    join_seconds: float = 0.0
    """Time for which KV that had come waited for the pass that ran on the decode node; part of `decode_seconds`."""
    pull_seconds: float = 0.0
    """Time from asking for them until they were here; no part of `prefill_seconds`."""
    mean_batch_size: float = 0.0
    """Requests that decoded in its steps, itself included, on average; 0: not known."""
    message: generation_pb2.PlacementSummary | None = field(default=None, compare=False, repr=False)
    """What of its summary is kept for people; None: nothing."""

    @property
    def total_seconds(self) -> float:
        """Return the time until the last token."""
        return self.queue_seconds + self.pull_seconds + self.prefill_seconds + self.decode_seconds

    @property
    def terms(self) -> Mapping[str, float]:
        """Return the seconds of each of `MEASURED_TERMS`."""
        return {term: getattr(self, f"{term}_seconds") for term in MEASURED_TERMS}


Report: TypeAlias = NodeDescription | LoadReport | LinkMeasurement | Outcome
"""What a node sends."""


@dataclass(slots=True)
class Node:
    """A registered node. Mutable; owned by `NodeTable`."""

    description: NodeDescription
    reported_at_seconds: float
    """When it last reported (or registered)."""
    progressed_at_seconds: float
    """When its step count last moved, or it last had no work."""
    report: LoadReport | None = None
    """Its last report; None: none yet, taken as idle."""
    links: dict[str, LinkMeasurement] = field(default_factory=dict)
    """Links into it, by sending node."""
    last_used: int = 0
    """Number of the last placement that used it."""
    snapshot: NodeSnapshot | None = None
    """What placement sees of it, as it was worked out last; None: something has changed. Kept by `RouterState`."""
    current: NodeSnapshot | None = None
    """The same at a later moment; None: nobody has asked. Kept by `NodeSnapshots`."""
    lacking: dict[Adapter, tuple[NodeSnapshot, NodeSnapshot]] = field(default_factory=dict)
    """A snapshot, and the same for those who want an adapter that it has not. Kept by `NodeSnapshots`."""
    snapshot_until_seconds: float = 0.0
    """When it has to be worked out again, though nothing has been heard."""
    queued_work: tuple[QueuedWork, ...] = ()
    """What the snapshot's queue is made of: its own, and that of each node on its device."""
    receive_bytes_per_second: float = 0.0
    """Rate of the fastest link into it, which its network card reaches at least. Kept by `NodeTable`."""

    @property
    def max_batch_size(self) -> int:
        """Return how many requests it decodes together at most: as it registered, or one while its memory is short."""
        is_sparing = self.report is not None and self.report.is_sparing_memory
        return 1 if is_sparing else self.description.max_batch_size

    @property
    def load(self) -> NodeLoad:
        """Return its work as last reported; an idle node with a free pool before the first report."""
        return self.report.load if self.report else NodeLoad(num_free_blocks=self.description.num_blocks)

    @property
    def load_at_seconds(self) -> float:
        """Return of when its load is."""
        return self.reported_at_seconds - (self.report.age_seconds if self.report else 0.0)


DOUBT_SHARE = 0.3
"""Part of the time after which a silent node is unusable, among others that are heard: three reports by default."""


class NodeTable:
    """Nodes by id.

    Invariant, kept by `register` and `remove`: an entry belongs to the process that had the name first, for as long as
    it is heard, and of that to the registration that came last; `remove` by an earlier registration leaves it alone.
    No epoch, which a process chooses by itself, takes a name away.

    `clock`: seconds, monotonic. `stuck_seconds`: a node with work and no engine step for longer is unusable.
    `silent_seconds`: a node without a report for longer is unusable; for `DOUBT_SHARE` of it, while others of its model
    that can do the same are heard: a node that was cut off says nothing, and what is placed there waits.
    """

    def __init__(self, clock: Callable[[], float], *, stuck_seconds: float, silent_seconds: float) -> None:
        self._heard_at: dict[tuple[str, NodeRole], float] = {}  # last report of any node, by model and part
        self._clock = clock
        self._stuck_seconds = stuck_seconds
        self._silent_seconds = silent_seconds
        self._nodes: dict[str, Node] = {}
        self._by_model: dict[str, list[Node]] = {}
        self._by_device: dict[str, list[Node]] = {}
        self._send_rates: dict[str, float] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(sorted(self._nodes.values(), key=lambda node: node.description.node_id))

    def get(self, node_id: str) -> Node | None:
        """Return a node, or None."""
        return self._nodes.get(node_id)

    def of_model(self, model_id: str) -> list[Node]:
        """Return the nodes of a model, sorted by id. Kept until a node comes or goes."""
        if model_id not in self._by_model:
            self._by_model[model_id] = [node for node in self if node.description.model_id == model_id]
        return self._by_model[model_id]

    def beside(self, node: Node) -> list[Node]:
        """Return the other nodes that compute on a node's device, whatever their model."""
        device_id = node.description.device_id
        if not device_id:
            return []
        if not self._by_device:
            for each in self:
                self._by_device.setdefault(each.description.device_id, []).append(each)
        return [each for each in self._by_device.get(device_id, ()) if each is not node]

    def register(self, description: NodeDescription) -> Node:
        """Add a node in place of its own entry, or of a lost one; raise SupersededError if the name is in use."""
        known = self._nodes.get(description.node_id)
        if known and known.description.epoch != description.epoch and self._keeps_name(known):
            raise SupersededError(
                f"node {description.node_id}: another process has this name and is heard, at "
                f"{known.description.address}: give one of them another --node-id"
            )
        now = self._clock()
        self._hear(description, now)
        node = Node(description, reported_at_seconds=now, progressed_at_seconds=now)
        if known and known.description.epoch == description.epoch:  # it has connected again
            node.links, node.receive_bytes_per_second = known.links, known.receive_bytes_per_second
        self._nodes[description.node_id] = node
        self._by_model.clear()
        self._by_device.clear()
        self._send_rates.clear()
        return node

    def remove(self, node: Node) -> bool:
        """Drop a node, unless a later registration has replaced it; return whether it was dropped."""
        if self._nodes.get(node.description.node_id) is not node:
            return False
        del self._nodes[node.description.node_id]
        self._by_model.clear()
        self._by_device.clear()
        self._send_rates.clear()
        return True

    def report(self, node: Node, report: LoadReport) -> None:
        """Take a load report."""
        now = self._clock()
        self._hear(node.description, now)
        had_work = node.report is not None and node.report.has_work
        if not (had_work and report.has_work) or node.report is None or report.step_count != node.report.step_count:
            node.progressed_at_seconds = now
        node.report = report
        node.reported_at_seconds = now

    def report_age_seconds(self, node: Node) -> float:
        """Return the time since a node's last report, or since it registered."""
        return self._clock() - node.reported_at_seconds

    def measure_link(self, receiver: Node, link: LinkMeasurement) -> None:
        """Take a measured link into a node."""
        before = receiver.links.get(link.from_node_id)
        if before is None:
            receiver.links = {name: each for name, each in receiver.links.items() if name in self._nodes}
        receiver.links[link.from_node_id] = link
        if before is None or before.bytes_per_second < receiver.receive_bytes_per_second:
            receiver.receive_bytes_per_second = max(receiver.receive_bytes_per_second, link.bytes_per_second)
        else:  # it was the fastest
            receiver.receive_bytes_per_second = max(each.bytes_per_second for each in receiver.links.values())
        self._send_rates.pop(link.from_node_id, None)

    def send_bytes_per_second(self, node_id: str) -> float:
        """Return the rate of a node's fastest link, which its network card reaches at least; 0: none is measured."""
        if node_id not in self._send_rates:
            links = (node.links.get(node_id) for node in self._nodes.values())
            self._send_rates[node_id] = max((link.bytes_per_second for link in links if link), default=0.0)
        return self._send_rates[node_id]

    def usable_until_seconds(self, node: Node) -> float:
        """Return when a node will be silent or stuck if nothing more is heard of it; the past if it is."""
        silent_at = node.reported_at_seconds + DOUBT_SHARE * self._silent_seconds
        if node.report is None or not node.report.has_work:
            return silent_at
        return min(silent_at, node.progressed_at_seconds + self._stuck_seconds)

    def heard_for_seconds(self, node: Node) -> float:
        """Return the time until then; not above 0: it is."""
        return self.usable_until_seconds(node) - self._clock()

    def _keeps_name(self, node: Node) -> bool:
        is_leaving = node.report is not None and node.report.is_draining
        return not is_leaving and self.report_age_seconds(node) <= DOUBT_SHARE * self._silent_seconds

    def _is_doubtful(self, node: Node, silent_seconds: float, now: float) -> bool:
        """Return whether a node is silent for long enough to do without it, where others are heard."""
        doubt_seconds = DOUBT_SHARE * self._silent_seconds
        if silent_seconds <= doubt_seconds:
            return False
        heard = (self._heard_at.get(key, -math.inf) for key in _parts(node.description))
        return all(now - heard_at <= doubt_seconds for heard_at in heard)

    def _hear(self, description: NodeDescription, now: float) -> None:
        for key in _parts(description):
            self._heard_at[key] = now

    def unusable_reason(self, node: Node) -> str:
        """Return why a node takes no requests now; empty if it does."""
        now = self._clock()
        if node.report and node.report.is_draining:
            return DRAINING
        silent_seconds = self.report_age_seconds(node)
        if silent_seconds > self._silent_seconds or self._is_doubtful(node, silent_seconds, now):
            return f"no report for {silent_seconds:.1f} s"
        stuck_seconds = now - node.progressed_at_seconds
        if node.report and node.report.has_work and stuck_seconds > self._stuck_seconds:
            return f"stuck: no engine step for {stuck_seconds:.1f} s"
        return ""


def _parts(description: NodeDescription) -> Iterator[tuple[str, NodeRole]]:
    """Yield what a node can do of its model."""
    if can_decode(description.role):
        yield description.model_id, "decode"
    if can_prefill(description.role):
        yield description.model_id, "prefill"
