"""A node of the cluster: its engine, and what routers, cache indexes and metrics are told of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from opentelemetry import metrics

from baton.capacity.cost import NodeProfile
from baton.capacity.kv_transfer import WireAbility
from baton.capacity.snapshot import NodeRole, can_prefill
from baton.config.container_limits import usable_cores
from baton.discovery.watch import open_source
from baton.engine.constraints.compilation import ConstraintCompiler
from baton.engine.engine import Engine
from baton.engine.request_registry import deliver
from baton.engine.runners.base import Runner
from baton.engine.scheduling.admission import SchedulerLimits
from baton.errors import UnavailableError
from baton.internal.v1 import node_pb2
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockEvents
from baton.node.cluster.description import describe_engine, device_id, find_location
from baton.node.cluster.publication import CacheIndexPublications, LoopFeeder
from baton.node.cluster.registration import Peers, RouterRegistrations, load_message
from baton.node.gauges import observe_load, observe_machine
from baton.node.loading import choose_computing, load_runner, open_disk
from baton.node.memory import share_memory
from baton.node.profiling.node_speed import measure_profile
from baton.node.profiling.wire_formats import measure_wires
from baton.node.sensors.machine import machine_sensors
from baton.node.sensors.monitor import NodeMonitor
from baton.node.settings import NodeSettings
from baton.rpc.process import freeze_loaded_objects
from baton.security.access import TransferGate
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.text.tokenizer import TEXT_FILES, load_tokenizer, tokenizer_digest
from baton.wire.kv import abilities_to_proto
from baton.wire.node_roles import role_to_proto

log = logging.getLogger(__name__)

ENGINE_HUNG = "ENGINE_HUNG"
"""Reason of requests that a node gives up because the pass that computes them does not end."""
REPORT_SECONDS = 0.5
"""Longest time between two load reports; a router may ask for more of them."""


class WorkerNode:
    """An engine in the cluster: `load_node`, `start` once its services listen, `drain`, `close` after the last call."""

    def __init__(
        self,
        settings: NodeSettings,
        role: NodeRole,
        runner: Runner,
        profile: NodeProfile,
        wire_abilities: Sequence[WireAbility] = (),
        disk: DiskBlockStore | None = None,
        place: node_pb2.KubernetesPlace | None = None,
        text_digest: str = "",
    ) -> None:
        self.settings = settings
        self.budgets = share_memory(settings, runner)
        """Bytes of main memory that each part of the node may hold, by the setting that bounds it."""
        self.is_kv_quantized = settings.kv_quantization != "none"
        """Whether the KV here is rounded, so that no other node may take it for exact."""
        self.runner, self.profile = runner, profile
        self._wire_abilities, self._place = wire_abilities, place
        self._text_digest = text_digest
        count = Metrics().add
        self.transfers = TransferGate(lambda claim: count(names.REFUSED_TRANSFERS, 1, {names.REASON: claim}))
        self.node_id = ""
        self.is_draining = False
        self._is_paused = self._is_hung = False
        self.monitor = NodeMonitor(runner, machine_sensors(settings.device if settings.engine == "torch" else ""))
        self._role = role
        self._loop = asyncio.get_running_loop()
        self._registrations: RouterRegistrations | None = None
        self._publications: CacheIndexPublications | None = None
        self.death: asyncio.Future[None] = self._loop.create_future()
        """Fails with what the engine died of, if it does."""
        self.constraints = ConstraintCompiler(
            lambda: load_tokenizer(settings.model_dir).serialized(),
            vocabulary_size=runner.info.vocabulary_size,
            eos_token_ids=runner.info.eos_token_ids,
        )
        self.engine = Engine(
            runner,
            _limits(settings, role, self.budgets, runner.info.shape.weight_bytes / profile.decode_bytes_per_second),
            post=lambda deliveries: self._call_soon(deliver, deliveries),
            on_block_events=LoopFeeder(self._loop, self._publish).put,
            on_fatal=lambda error: self._call_soon(self._die, error),
            on_queue_change=lambda placement_ids: self._call_soon(self._tell_queue, placement_ids),
            max_waiting=settings.max_waiting,
            disk=disk,
        )

    @property
    def registration(self) -> RouterRegistrations:
        """Return the streams to the routers; they exist from `start` on."""
        if self._registrations is None:
            raise UnavailableError("the node is starting", reason="STARTING")
        return self._registrations

    def check_accepts(self, *, lets_leave: bool = False) -> None:
        """Raise UnavailableError for new work while the node shuts down; not for what moves its work elsewhere."""
        if self.is_draining and not lets_leave:
            raise UnavailableError(f"node {self.node_id} is shutting down", reason="DRAINING")
        if self._is_paused:
            raise UnavailableError(f"node {self.node_id} rests: its machine is about to sleep", reason="DRAINING")
        if self._is_hung:
            raise self.hung_error()

    def set_paused(self, *, is_paused: bool) -> None:
        """Take no new work, or take it again, and tell the routers."""
        self._is_paused = is_paused
        if self._registrations is not None:
            self._registrations.report_load()

    def set_hung(self, *, is_hung: bool) -> None:
        """Take no new work while a pass hangs, and tell the routers."""
        self._is_hung = is_hung
        if self._registrations is not None:
            self._registrations.report_load()

    def hung_error(self) -> UnavailableError:
        """Return what requests are told whose engine hangs."""
        return UnavailableError(f"a pass hangs on node {self.node_id}", reason=ENGINE_HUNG)

    def start(self, port: int, fast_address: str, on_peers: Callable[[Peers], None]) -> None:
        """Start the engine and take the node's name; `work` then tells routers and cache indexes.

        `port`: where the node's services listen. `fast_address`: host:port of its fast path; empty: it has none.
        `on_peers`: called when the other nodes of the model change.
        """
        description = self._describe(port, fast_address)
        self._publications = CacheIndexPublications(open_source(self.settings.cache_index_address), self.node_id)
        self._registrations = RouterRegistrations(
            open_source(self.settings.router_address),
            description,
            self._load_message,
            report_seconds=REPORT_SECONDS,
            on_peers=on_peers,
            transfer_key=self.transfers.key,
        )
        self.engine.start()
        freeze_loaded_objects()
        if self.settings.engine != "mock":  # a mock serves mostly what needs no tokenizer; it loads one when asked
            self.constraints.warm()
        self._export_load()

    def work(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what tells of the node, for as long as they are awaited: routers, cache indexes, sensors."""
        assert self._registrations is not None
        assert self._publications is not None
        return self._registrations.run(), self._publications.run(), self.monitor.run()

    def drain(self) -> None:
        """Accept no new work any more, and tell the routers."""
        self.is_draining = True
        self.registration.report_load()

    async def close(self) -> None:
        """End the engine; requests that still run are dropped."""
        self.constraints.close()
        await asyncio.to_thread(self.engine.close)

    def _export_load(self) -> None:
        meter = metrics.get_meter("baton")
        observe_load(
            meter,
            self.node_id,
            self.engine.load,
            shape=self.runner.info.shape,
            profile=self.profile,
            num_blocks=self.runner.num_blocks,
        )
        observe_machine(meter, self.node_id, lambda: self.monitor.latest)

    def _describe(self, port: int, fast_address: str) -> node_pb2.NodeDescription:
        """Set the node's name, which the port is part of, and return its description."""
        self.node_id = self.settings.name_of(self._role, port)
        cores = usable_cores()
        num_threads = choose_computing(self.settings, cores).num_threads
        description = describe_engine(self.runner, self.profile)
        own = node_pb2.NodeDescription(
            node_id=self.node_id,
            epoch=time.time_ns(),
            role=role_to_proto(self._role),
            address=self.settings.advertised(port),
            fast_address=fast_address,
            max_batch_size=self.settings.max_batch_size,
            max_step_token_count=self.settings.max_step_tokens,
            wire_abilities=abilities_to_proto(self._wire_abilities),
            is_cache_private=self.is_kv_quantized or self.runner.num_state_slots > 0,
            place=self._place,
            device_id=device_id(self.runner.info, num_threads=num_threads, num_cores=cores.num_cores),
            text_digest=self._text_digest,
        )
        description.MergeFrom(own)
        return description

    def _load_message(self, accepted_placement_ids: Sequence[str]) -> node_pb2.LoadReport:
        return load_message(
            self.engine.load(),
            age_seconds=self.engine.load_age_seconds(),
            is_draining=self.is_draining or self._is_paused or self._is_hung,
            accepted_placement_ids=accepted_placement_ids,
            system=self.monitor.latest,
        )

    def _tell_queue(self, accepted_placement_ids: Sequence[str]) -> None:
        if self._registrations is not None:
            self._registrations.accept_placements(accepted_placement_ids)

    def _publish(self, events: BlockEvents) -> None:
        if self._publications is not None:
            self._publications.add(events)

    def _die(self, error: BaseException) -> None:
        if not self.death.done():
            self.death.set_exception(error)

    def _call_soon(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


async def load_node(settings: NodeSettings, role: NodeRole) -> WorkerNode:
    """Load the model, measure the node's speed on it, return the node; raise ConfigurationError if it cannot be run."""
    started = time.perf_counter()
    runner = await asyncio.to_thread(load_runner, settings)
    loaded = time.perf_counter()
    profile = await asyncio.to_thread(measure_profile, runner)
    wire_abilities = await asyncio.to_thread(measure_wires, runner, has_losses=can_prefill(role))
    log.info(
        "model_loaded engine=%s device=%s load_seconds=%.2f profile_seconds=%.2f flops=%.3g bytes_per_second=%.3g",
        runner.info.engine,
        runner.info.device,
        loaded - started,
        time.perf_counter() - loaded,
        profile.prefill_flops,
        profile.decode_bytes_per_second,
    )
    for adapter in runner.info.adapters:
        log.info("adapter_loaded adapter=%s digest=%s", adapter.name, adapter.digest)
    disk = await asyncio.to_thread(open_disk, settings, runner)
    place = await asyncio.to_thread(find_location, settings)
    text_digest = await asyncio.to_thread(tokenizer_digest, settings.model_dir, TEXT_FILES)
    return WorkerNode(settings, role, runner, profile, wire_abilities, disk, place, text_digest=text_digest)


def _limits(
    settings: NodeSettings, role: NodeRole, budgets: Mapping[str, int], reading_seconds: float
) -> SchedulerLimits:
    return SchedulerLimits(
        max_batch_size=settings.max_batch_size,
        max_step_tokens=settings.max_step_tokens,
        shares_prompts=settings.share_prompts,
        max_host_bytes=budgets["host_kv_bytes"],
        target_tpot_seconds=settings.target_tpot_ms / 1000,
        reading_seconds=reading_seconds,
        computes_for_others=can_prefill(role),
    )
