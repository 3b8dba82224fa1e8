"""A router of unlike nodes under load, by a clock of its own: requests are placed, nodes report, outcomes come back."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, replace

from baton.capacity.cost import NodeProfile
from baton.capacity.hardware import PRESETS
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.search.placement_search import PlacementSearch
from baton.capacity.snapshot import NodeLoad, NodeRole, QueuedPrompt
from baton.internal.v1.router_service_pb2 import Placement, PlaceRequest, PlaceResponse
from baton.kv.hashing import HeldPrefix
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec
from baton.router.nodes import LinkMeasurement, LoadReport, Node, NodeDescription, Outcome
from baton.router.placer import Placer
from baton.router.state import RouterState, StateLimits

MODEL = "llama"
REPORT_SECONDS = 0.5
"""Every node reports so often."""
REQUESTS_PER_NODE_SECOND = 1.0
"""Rate at which requests come, per node."""
CACHED_SHARE = 0.3
"""Part of the requests of whose prompt a few nodes hold the beginning."""
NUM_BLOCKS = 10_000
MAX_BATCH_SIZE = 64
_LAYOUT = KvLayout(MODEL, "a" * 32, "", (LayerSpec(8, 128, 128),) * 32, KvDtype.BFLOAT16)


class ManualClock:
    """Time that passes when the benchmark says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class Timing:
    """CPU time of the router's thread, in seconds."""

    decisions: list[float]
    """Of each decision: from the request's message to the answer's bytes."""
    reports: list[float]


class LoadedRouter:
    """A router with as many prefill nodes as decode nodes; each decode node has measured its link from every other.

    There are 2 nodes or more; where `is_alike`, of one kind and idle, so that all candidates are nearly equal.
    """

    def __init__(
        self, num_nodes: int, *, seed: int = 0, is_alike: bool = False, search: PlacementSearch | None = None
    ) -> None:
        self._rng = random.Random(seed)
        self._is_alike = is_alike
        self._clock = ManualClock()
        self.state = RouterState(self._clock, StateLimits())
        self._held: dict[str, HeldPrefix] = {}
        self._placer = Placer(self.state, self, new_search=(lambda _: search) if search else PlacementSearch)
        self._nodes = [self._registered(index) for index in range(num_nodes)]
        self._measure_links()
        self._placed: deque[tuple[float, Placement]] = deque()
        self._waiting: dict[str, list[tuple[str, int]]] = {}
        self._num_requests = 0
        for node in self._nodes:
            self._report(node)

    async def held_prefixes(self, block_hashes: bytes) -> dict[str, HeldPrefix]:
        """Return what a few nodes hold of the request's prompt, as the cache index would."""
        return self._held

    def run(self, num_decisions: int) -> Timing:
        """Place requests as they come, with reports and outcomes between them."""
        timing = Timing([], [])
        step_seconds = 1 / (REQUESTS_PER_NODE_SECOND * len(self._nodes))
        next_report = 0.0
        for _ in range(num_decisions):
            self._clock.seconds += step_seconds
            next_report += step_seconds * len(self._nodes) / REPORT_SECONDS
            while next_report >= 1:
                next_report -= 1
                self._nodes.append(self._nodes.pop(0))
                timing.reports.append(self._report(self._nodes[-1]))
            self._settle()
            timing.decisions.append(self.decide(self.request()))
        return timing

    def decide(self, request: PlaceRequest) -> float:
        """Place a request; return the CPU time that it took."""
        began = time.thread_time()
        response = self._answer(request)
        response.SerializeToString()
        seconds = time.thread_time() - began
        if not request.is_dry_run:
            self._note(response, request)
        return seconds

    def request(self, **changed: object) -> PlaceRequest:
        """Return the next request."""
        rng = self._rng
        self._num_requests += 1
        num_tokens = int(min(30_000, max(16, rng.lognormvariate(7.0, 1.2))))
        self._held = {}
        if not self._is_alike and rng.random() < CACHED_SHARE:
            for node in rng.sample(self._nodes, min(6, len(self._nodes))):
                num_blocks, num_host = rng.randint(1, 1 + num_tokens // 16), rng.randint(0, 64)
                self._held[node.description.node_id] = HeldPrefix(num_blocks, num_host, num_host + 8, 8)
        fields = {
            "request_id": f"r{self._num_requests}",
            "model_id": MODEL,
            "prompt_token_count": num_tokens,
            "max_token_count": 512,
            "block_hashes": bytes(16),
        }
        return PlaceRequest(**(fields | changed))  # type: ignore[arg-type]

    def _answer(self, request: PlaceRequest) -> PlaceResponse:
        """Return the answer. The placer waits for the cache index alone, which answers at once here."""
        answer = self._placer.place(request)
        try:
            answer.send(None)
        except StopIteration as done:
            response: PlaceResponse = done.value
            return response
        raise AssertionError("the placer waits for something")

    def _registered(self, index: int) -> Node:
        role: NodeRole = "decode" if index % 2 else "prefill"
        profile = PRESETS["a100"].profile() if self._is_alike else random_profile(self._rng)
        return self.state.register(
            NodeDescription(
                node_id=f"{role}-{index:04}",
                epoch=1,
                role=role,
                address="127.0.0.1:1",
                model_id=MODEL,
                layout=_LAYOUT,
                shape=LLAMA_3_1_8B,
                profile=profile,
                num_blocks=NUM_BLOCKS,
                block_tokens=16,
                max_batch_size=MAX_BATCH_SIZE,
                max_step_tokens=self._rng.choice((512, 2048, 8192)),
            )
        )

    def _measure_links(self) -> None:
        """Rates lie between 2 and 200 Gb/s; of like nodes within 5 % of 100."""
        for receiver in self._nodes:
            if not receiver.description.can_decode:
                continue
            for sender in self._nodes:
                if sender is not receiver:
                    rate = 1.25e10 * self._rng.uniform(0.95, 1.05)
                    if not self._is_alike:
                        rate = 10 ** self._rng.uniform(8.4, 10.4)
                    link = LinkMeasurement(sender.description.node_id, rate, self._rng.uniform(1e-4, 1e-3))
                    self.state.measure_link(receiver, link)

    def _report(self, node: Node) -> float:
        node_id = node.description.node_id
        accepted = self._waiting.pop(node_id, [])
        load = NodeLoad(num_free_blocks=NUM_BLOCKS)
        if not self._is_alike:
            load = random_load(self._rng, MAX_BATCH_SIZE, NUM_BLOCKS)
            prompts = [QueuedPrompt(name, 0, num_tokens) for name, num_tokens in accepted[:4]]
            num_bytes = self._rng.choice((0, self._rng.randint(0, 10**8)))
            load = replace(load, landing_bytes_per_second=10 ** self._rng.uniform(9, 10.5), num_landing_bytes=num_bytes)
            load = replace(load, num_pending_prompt_tokens=sum(prompt.num_left_tokens for prompt in prompts))
            if not node.description.can_decode:
                num_exports = load.num_running + load.num_waiting
                load = replace(load, num_exports=num_exports, num_decoding=0, mean_context_tokens=0.0)
            load = replace(load, queued_prompts=tuple(prompts))
        step_count = node.report.step_count + 1 if node.report else 1
        names = tuple(name for name, _ in accepted)
        report = LoadReport(load, step_count=step_count, is_draining=False, accepted_placement_ids=names)
        began = time.thread_time()
        self.state.report(node, report)
        return time.thread_time() - began

    def _note(self, response: PlaceResponse, request: PlaceRequest) -> None:
        """Remember what nodes will report and the outcome will be."""
        placement = response.placement
        done_at = self._clock.seconds + min(5.0, placement.estimate.start_seconds + placement.estimate.decode_seconds)
        self._placed.append((done_at, placement))
        for node_id in {placement.decode_node_id, placement.prefill_node_id} - {""}:
            self._waiting.setdefault(node_id, []).append((placement.placement_id, request.prompt_token_count))

    def _settle(self) -> None:
        """Report the outcomes of requests that are through, up to a quarter off their estimates."""
        while self._placed and self._placed[0][0] <= self._clock.seconds:
            _, placement = self._placed.popleft()
            estimate = placement.estimate
            terms = {
                name: getattr(estimate, name) * self._rng.uniform(0.8, 1.25)
                for name in (
                    "queue_seconds",
                    "prefill_seconds",
                    "transfer_seconds",
                    "exposed_seconds",
                    "decode_seconds",
                    "pull_seconds",
                )
            }
            self.state.settle(
                Outcome(
                    placement_id=placement.placement_id,
                    decode_node_id=placement.decode_node_id,
                    prefill_node_id=placement.prefill_node_id or placement.decode_node_id,
                    prefill_cached_tokens=0,
                    kv_bytes=10**8,
                    kv_frames=32,
                    num_completion_tokens=self._rng.randint(16, 512),
                    num_preemptions=0,
                    fallback_reason="",
                    **terms,
                )
            )


def random_profile(rng: random.Random) -> NodeProfile:
    """Return the profile of some machine, faster or slower by up to half."""
    profile = PRESETS[rng.choice(sorted(PRESETS))].profile()
    return profile.slowed(rng.uniform(0.5, 2.0), rng.uniform(0.5, 2.0))


def random_load(rng: random.Random, max_batch_size: int, num_blocks: int) -> NodeLoad:
    """Return the load of a busy node."""
    num_running, num_waiting = rng.randint(0, max_batch_size), rng.choice((0, 0, rng.randint(1, 12)))
    return NodeLoad(
        num_waiting=num_waiting,
        num_running=num_running,
        num_pending_prompt_tokens=num_waiting * rng.randint(1, 4000),
        num_free_blocks=rng.randint(-200, num_blocks),
        mean_context_tokens=rng.uniform(1, 8000) if num_running else 0.0,
        num_decoding=rng.randint(0, num_running),
        num_exports=rng.choice((0, rng.randint(0, num_running + num_waiting))),
        landing_bytes_per_second=rng.choice((0.0, 10 ** rng.uniform(8, 11))),
        num_landing_bytes=rng.choice((0, rng.randint(0, 10**9))),
    )
