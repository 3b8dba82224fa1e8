"""A worker process: one node and the services on it, from the loading of the model to the drain.

Its role says which: prefill or decode where an operator pins it, worker for both on one engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from baton.decode.service import decode_service
from baton.decode.settings import DecodeSettings
from baton.errors import ConfigurationError
from baton.internal.v1.worker_service_pb2_grpc import add_WorkerServiceServicer_to_server
from baton.kv_transport.kv_services import BLOCK_SERVICE_NAME, add_block_service
from baton.node.block_servicer import BlockServicer
from baton.node.cluster.registration import Peers
from baton.node.node import WorkerNode, load_node
from baton.node.sensors.memory import open_pressure, watch_pressure
from baton.node.service import NodeService
from baton.prefill.servicer import prefill_service
from baton.prefill.settings import PrefillSettings
from baton.rpc.server import GrpcServer, host_port, wait_for_stop_signal
from baton.weight_transfer.pace import Pace
from baton.weight_transfer.service import SERVICE_NAME as WEIGHT_SERVICE_NAME
from baton.weight_transfer.service import WeightServicer
from baton.worker.engine_watch import EngineHealth, EngineWatch, watch_passes
from baton.worker.pausing import SERVICE_NAME, WorkerServicer


async def serve(settings: PrefillSettings | DecodeSettings) -> None:
    """Load the model and serve as settings say until a signal, then drain; raise ConfigurationError if it cannot."""
    prefills, decodes = isinstance(settings, PrefillSettings), isinstance(settings, DecodeSettings)
    node = await load_node(settings, "worker" if prefills and decodes else "prefill" if prefills else "decode")
    services = [prefill_service(node, settings)] if isinstance(settings, PrefillSettings) else []
    services += [decode_service(node, settings)] if isinstance(settings, DecodeSettings) else []
    await WorkerProcess(node, services).run()


class WorkerProcess:
    """Hosts services on a node, and three that every node has: BlockService, WeightService and WorkerService.

    The process is healthy once it serves, its services once a router has accepted the node too.
    """

    def __init__(self, node: WorkerNode, services: Sequence[NodeService]) -> None:
        self._node = node
        self._services = services
        self._fast = next((service.fast for service in services if service.fast is not None), None)
        self._server = GrpcServer(host_port(node.settings.host, node.settings.port))
        for service in services:
            self._server.add(service.name, service.register)
        self._server.add(BLOCK_SERVICE_NAME, partial(add_block_service, BlockServicer(node)))
        self._health = EngineHealth.MOVES
        self._is_accepted = self._is_hung = False
        servicer = WorkerServicer(node, node.settings.model_dir)
        self._server.add(SERVICE_NAME, partial(add_WorkerServiceServicer_to_server, servicer))
        settings = node.settings
        pace = Pace(settings.weight_bytes_per_second, lambda: node.engine.load().num_running > 0)
        weights = WeightServicer({settings.served_name: settings.model_dir}, pace)
        self._server.add(WEIGHT_SERVICE_NAME, weights.register)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; raise ConfigurationError, or what the engine died of."""
        port = await self._server.start(is_serving=False)
        if self._fast is not None:
            self._fast.start()
        try:
            self._node.start(port, self._fast.advertised_address if self._fast else "", on_peers=self._tell_peers)
        except ConfigurationError:
            await self._server.drain(0)  # its destructor would otherwise write below the error
            raise
        self._tell_health()
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(work) for work in self._work()]
            try:
                await self._wait_for_end()
                await self._drain()
            finally:
                for task in background:
                    task.cancel()
        await self._node.close()

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what goes on beside the calls, for as long as the process serves."""
        engine = self._node.engine
        return (
            *(service.run() for service in self._services),
            *self._node.work(),
            EngineWatch(engine.call, engine.load, self._node.settings.stuck_seconds).run(self._note_health),
            watch_passes(engine.is_pass_hung, self._note_hung),
            self._join(),
            watch_pressure(open_pressure(), engine.spare_memory),
        )

    def _tell_peers(self, peers: Peers) -> None:
        for service in self._services:
            service.on_peers(peers)

    async def _join(self) -> None:
        """Have the services serve from the first time on that a router has accepted the node.

        A pod is ready then: before, nobody would send it anything, and a rollout must not take its predecessor away. It
        stays so when the router goes: what runs goes on, and gateways have more than one way to a router.
        """
        await self._node.registration.accepted.wait()
        self._is_accepted = True
        self._tell_health()

    async def _note_health(self, health: EngineHealth) -> None:
        self._health = health
        self._tell_health()

    def _note_hung(self, is_hung: bool) -> None:
        self._is_hung = is_hung
        self._node.set_hung(is_hung=is_hung)
        for service in self._services if is_hung else ():
            service.on_hung(self._node.hung_error())
        self._tell_health()

    def _tell_health(self) -> None:
        is_serving = (
            self._is_accepted and not (self._is_hung or self._node.is_draining) and self._health is EngineHealth.MOVES
        )
        self._server.set_serving(is_serving, is_alive=self._health is not EngineHealth.LOST)

    async def _wait_for_end(self) -> None:
        """Return when the process is asked to stop, or raise what the engine died of."""
        async with asyncio.TaskGroup() as tasks:
            stop = tasks.create_task(wait_for_stop_signal())
            await asyncio.wait({stop, self._node.death}, return_when=asyncio.FIRST_COMPLETED)
            if self._node.death.done():
                stop.cancel()
                self._node.death.result()

    async def _drain(self) -> None:
        self._node.drain()
        for service in self._services:
            service.on_drain()
        self._tell_health()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._node.settings.drain_seconds
        with suppress(TimeoutError):  # until then this node's KV can be pulled by those that take over
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(service.left() for service in self._services))
        grace_seconds = max(0.0, deadline - clock())
        await asyncio.gather(*(each.drain(grace_seconds) for each in (self._server, self._fast) if each))
