"""Carries out a router's orders on one machine: fetches models, runs a worker for each, and says how they stand."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import grpc
import psutil

from baton.agent.child import STOP_GRACE_SECONDS, ChildSpec, OnLine, describe_exit
from baton.agent.health import is_serving
from baton.agent.supervisor import Supervisor
from baton.capacity.reference_models import shape_of_folder
from baton.config.container_limits import usable_memory
from baton.discovery.watch import open_source
from baton.errors import BatonError, ConfigurationError
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import MachineModel, ModelOrder
from baton.internal.v1.model_service_pb2_grpc import ModelServiceStub
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc
from baton.security.access import MAX_CLOCK_LEAD_NANOSECONDS, ROUTER_NAMES
from baton.weight_transfer.fetcher import bring_model
from baton.weights.hub import FetchProgress
from baton.wire.quantities import shape_to_proto

log = logging.getLogger(__name__)

_REPORT_SECONDS = 0.5
_CHECK_SECONDS = 2.0
_PAUSE_SECONDS = 1.0
STALL_SECONDS = 120.0
"""For which neither a byte comes nor memory grows until a model counts as failed."""
DRAIN_SECONDS = 600
"""For which a worker that a plan ends goes on with the requests that it has: as long as a gateway lets one take."""
_MAX_EARLY_ENDS = 3
"""Ends of a worker before it has served; then its model has failed."""
_MISCONFIGURED = 2
"""Exit status of a worker that would end alike the next time."""


class StartedWorker(NamedTuple):
    """How a worker is started."""

    child: ChildSpec
    address: str
    """host:port where its health is asked for."""
    node_id: str


MakeWorker = Callable[[str, Path, int], StartedWorker]
"""Takes a model's name and folder, and its memory for K and V, 0: the worker chooses. The port is a free one."""


class ModelWorkers:
    """The models of one machine.

    `machine_id`: its name. `make_worker`: says how a worker is started. `parameter_bytes`: of a weight in a worker's
    memory. `on_line`: told of workers' output. `weight_address`: host:port where other machines
    take models from this one, :port on the router's host; empty: none does.
    """

    def __init__(
        self, machine_id: str, make_worker: MakeWorker, parameter_bytes: int, on_line: OnLine, weight_address: str = ""
    ) -> None:
        self._machine_id, self._weight_address = machine_id, weight_address
        self._make_worker, self._parameter_bytes = make_worker, parameter_bytes
        self._on_line = on_line
        self._works: dict[str, tuple[_ModelWork, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._epoch = 0

    async def run(self, router_address: str) -> NoReturn:
        """Report to whichever router leads, and obey it, until cancelled; then all workers end."""
        found = deque([frozenset[str]()], maxlen=1)
        watching = asyncio.ensure_future(open_source(router_address)(found.append))
        try:
            while True:
                for address, name in product(sorted(found[0]), ROUTER_NAMES):
                    with suppress(UnreachableRouterError):
                        await self._follow(address, name)
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            tasks = [watching, *(task for _, task in self._works.values()), *self._leaving]
            for task in tasks:
                task.cancel()
            if (await asyncio.wait(tasks, timeout=STOP_GRACE_SECONDS))[1]:
                for work, _ in self._works.values():
                    work.kill()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, address: str, name: str) -> None:
        """Obey the router there, which no other member of the deployment is, by the name in its certificate."""
        host = address.rpartition(":")[0]
        async with open_channel(address, process=name) as channel:
            call = ModelServiceStub(channel).Supervise(self._reports())  # type: ignore[no-untyped-call]
            try:
                async for orders in call:
                    for order in orders.orders:  # those on the router's host tell a port alone
                        hosted = [f"{host}{each}" if each.startswith(":") else each for each in order.weight_addresses]
                        order.weight_addresses[:] = hosted
                    self.obey(orders)
            except grpc.aio.AioRpcError as error:
                raise UnreachableRouterError(error_from_rpc(error).message) from error
            finally:
                call.cancel()

    async def _reports(self) -> AsyncIterator[messages.SuperviseRequest]:
        while True:
            yield self.report()
            await asyncio.sleep(_REPORT_SECONDS)

    def report(self) -> messages.SuperviseRequest:
        """Return how the models of this machine stand."""
        return messages.SuperviseRequest(
            machine_id=self._machine_id,
            free_byte_count=usable_memory().free_bytes,
            models=[work.told() for work, _ in self._works.values()],
            epoch=self._epoch,
            weight_address=self._weight_address,
        )

    def obey(self, orders: messages.SuperviseResponse) -> None:
        """Begin what a router orders, and end all else; orders of an earlier epoch, or of a far one, are left."""
        if not self._epoch <= orders.epoch <= time.time_ns() + MAX_CLOCK_LEAD_NANOSECONDS:
            log.warning("orders_ignored epoch=%d known=%d", orders.epoch, self._epoch)
            return
        self._epoch = orders.epoch
        wanted = {order.name: order for order in orders.orders}
        for name, (work, task) in list(self._works.items()):
            order = wanted.get(name)
            if work.is_leaving or (order is not None and work.does(order)):
                continue
            work.is_leaving = True
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            task.add_done_callback(partial(self._replace, name, order))
        for name in wanted.keys() - self._works.keys():
            self._begin(wanted[name])

    def _begin(self, order: ModelOrder) -> None:
        work = _ModelWork(order, self._make_worker, self._parameter_bytes, self._on_line)
        self._works[order.name] = work, asyncio.ensure_future(work.run())

    def _replace(self, name: str, order: ModelOrder | None, _ended: asyncio.Task[None]) -> None:
        """Go on with what is ordered once a worker is gone, so that its memory is back."""
        del self._works[name]
        if order is not None:
            self._begin(order)


class UnreachableRouterError(BatonError):
    """No router that leads is there; workers go on meanwhile."""


class _ModelWork:
    """What is done about one order."""

    def __init__(self, order: ModelOrder, make_worker: MakeWorker, parameter_bytes: int, on_line: OnLine) -> None:
        self._order, self._make_worker = order, make_worker
        self._parameter_bytes, self._on_line = parameter_bytes, on_line
        self._supervisor: Supervisor | None = None
        self._has_served = False
        self._num_early_ends = 0
        self._state = MachineModel(name=order.name, stage=messages.MODEL_STAGE_FETCHING)
        self.is_leaving = False

    def kill(self) -> None:
        """End its worker at once, whatever that does."""
        if self._supervisor:
            self._supervisor.kill()

    def does(self, order: ModelOrder) -> bool:
        """Return whether it already does what is ordered, or has failed at it and is not asked anew."""
        known = self._order
        is_asked_anew = bool(self._state.problem) and order.attempt > known.attempt
        return (order.source, order.is_served) == (known.source, known.is_served) and not is_asked_anew

    def told(self) -> MachineModel:
        """Return how it stands."""
        state, supervisor = self._state, self._supervisor
        state.held_byte_count = _held_bytes(supervisor.process_id) if supervisor else 0
        if self.is_leaving and supervisor:
            state.stage = messages.MODEL_STAGE_DRAINING
        elif state.stage == messages.MODEL_STAGE_LOADED:
            state.done_byte_count = min(state.held_byte_count, state.total_byte_count)
        return state

    async def run(self) -> None:
        """Fetch the model, and serve it if that is ordered, until cancelled."""
        try:
            folder = await self._watched(self._bring(), lambda: self._state.done_byte_count)
            if self._order.is_served:
                await self._serve(folder)
        except (BatonError, OSError) as error:
            self._fail(getattr(error, "message", str(error)))

    async def _bring(self) -> Path:
        def tell(progress: FetchProgress) -> None:
            self._state.done_byte_count, self._state.total_byte_count = progress.done_bytes, progress.total_bytes

        folder = await bring_model(self._order.source, self._order.weight_addresses, tell)
        shape = shape_of_folder(folder, self._parameter_bytes)
        self._state.weight_byte_count = self._state.total_byte_count = shape.weight_bytes
        self._state.shape.CopyFrom(shape_to_proto(shape))
        self._state.stage = messages.MODEL_STAGE_STORED
        return folder

    async def _serve(self, folder: Path) -> None:
        self._state.kv_byte_count = self._order.kv_byte_count
        started = self._make_worker(self._order.name, folder, self._order.kv_byte_count)
        self._state.stage, self._state.node_id = messages.MODEL_STAGE_LOADED, started.node_id
        grace = DRAIN_SECONDS + STOP_GRACE_SECONDS
        self._supervisor = Supervisor(started.child, self._on_line, grace_seconds=grace, gives_up=self._gives_up)
        checking = asyncio.ensure_future(self._check(started.address))
        try:
            status = await self._watched(self._supervisor.run(), self._moved)
            lines = self._supervisor.last_lines
            self._fail(f"its worker ended with {describe_exit(status)}: {lines[-1] if lines else 'it said nothing'}")
        finally:
            self._supervisor = None
            checking.cancel()

    def _moved(self) -> float:
        """Return a number that changes while a worker loads: its memory and its processor's time; serving, it lives."""
        if self._has_served or self._supervisor is None:
            return time.monotonic()
        with suppress(psutil.Error):
            process = psutil.Process(self._supervisor.process_id)
            return float(process.memory_info().rss + sum(process.cpu_times()[:2]))
        return time.monotonic()

    async def _check(self, address: str) -> NoReturn:
        while True:
            is_ready = self._supervisor is not None and await is_serving(address, _CHECK_SECONDS)
            if is_ready and self._supervisor:
                self._has_served = True
                self._supervisor.mark_serving()
            self._state.stage = messages.MODEL_STAGE_SERVING if is_ready else messages.MODEL_STAGE_LOADED
            await asyncio.sleep(_CHECK_SECONDS if is_ready else _REPORT_SECONDS)

    def _gives_up(self, _supervisor: Supervisor, status: int) -> bool:
        self._num_early_ends += not self._has_served
        return not self._has_served and (status == _MISCONFIGURED or self._num_early_ends >= _MAX_EARLY_ENDS)

    async def _watched(self, work: Coroutine[Any, Any, Any], progress: Callable[[], float]) -> Any:
        """Return what work comes to; raise ConfigurationError once nothing has moved for `STALL_SECONDS`."""
        task = asyncio.ensure_future(work)
        seen, since = progress(), time.monotonic()
        try:
            while not (await asyncio.wait({task}, timeout=_CHECK_SECONDS))[0]:
                if (now := progress()) != seen:
                    seen, since = now, time.monotonic()
                elif time.monotonic() - since > STALL_SECONDS:
                    raise ConfigurationError(f"nothing has moved for {STALL_SECONDS:.0f} s: ask for it again")
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _fail(self, problem: str) -> None:
        is_absent = self._state.stage == messages.MODEL_STAGE_FETCHING and not self._state.done_byte_count
        self._state.stage = messages.MODEL_STAGE_ABSENT if is_absent else messages.MODEL_STAGE_FAILED
        self._state.problem = problem[:500]
        log.warning("model_failed model=%s cause=%r", self._order.name, problem)


def slug_of(name: str, max_length: int = 40) -> str:
    """Return a model's name in the characters of node ids, with a digest of it where it has others or is longer."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if slug == name and len(slug) <= max_length:
        return slug
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{slug[: max(0, max_length - 9)]}-{digest}".lstrip("-")


def _held_bytes(process_id: int) -> int:
    try:
        return int(psutil.Process(process_id).memory_info().rss) if process_id else 0
    except psutil.Error:
        return 0
