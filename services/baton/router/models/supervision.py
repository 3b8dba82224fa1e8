"""The leading router's view of machines and models: what they report, what is planned, and which orders they have."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from baton.capacity.cost import ModelShape, NodeProfile
from baton.capacity.hardware import PRESETS
from baton.capacity.planning.pricing import Demand, Machine, WantedModel
from baton.capacity.planning.search import Holders, ModelPlan
from baton.capacity.reference_models import shape_of_folder
from baton.capacity.snapshot import Link
from baton.config.memory_budget import told
from baton.errors import ConfigurationError, SupersededError
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import DesiredModel, MachineModel, ModelOrder
from baton.router.models.agent_session import AgentSession
from baton.router.models.desired import KEEP_ALIVE_SECONDS, DesiredModels
from baton.router.models.forecast import load_forecast, plan_lines, ready_seconds, why_nowhere
from baton.router.models.moves import Steadiness, next_change
from baton.router.models.plan_task import PlanFinder, PlanTask, are_alike
from baton.router.models.turns import Turns
from baton.router.state import RouterState
from baton.wire.quantities import duration_from_seconds, profile_from_proto, seconds_from_duration, shape_from_proto

log = logging.getLogger(__name__)

FAILED, SERVING, STORED = messages.MODEL_STAGE_FAILED, messages.MODEL_STAGE_SERVING, messages.MODEL_STAGE_STORED
_HELD = (messages.MODEL_STAGE_LOADED, SERVING)
_MOVING = (messages.MODEL_STAGE_LOADED, messages.MODEL_STAGE_DRAINING)
_GIVING = (SERVING, messages.MODEL_STAGE_LOADED, STORED, messages.MODEL_STAGE_FETCHING)
_NEAREST = (SERVING, messages.MODEL_STAGE_LOADED, messages.MODEL_STAGE_DRAINING, messages.MODEL_STAGE_FETCHING)
_DECIDE_SECONDS = 0.5
_USUAL = PRESETS["m2"].profile()
"""Speed of a machine that nobody has measured."""


class ModelSupervision:
    """Plans, and has agents carry it out, one change at a time. On one event loop.

    Epochs begin at `now_nanoseconds`, so that those of a later leader are greater.
    """

    def __init__(
        self,
        desired: DesiredModels,
        state: RouterState,
        clock: Callable[[], float] = time.monotonic,
        now_nanoseconds: Callable[[], int] = time.time_ns,
        turn_seconds: float = 30.0,
    ) -> None:
        self.desired = desired
        self._state = state
        self._clock = clock
        self._epoch = now_nanoseconds()
        self._sessions: dict[str, AgentSession] = {}
        self.turns = Turns(clock, turn_seconds)
        self._attempts: dict[str, int] = {}
        self._steadiness = Steadiness(clock)
        self._finder = PlanFinder()
        self._is_urgent = asyncio.Event()
        """Something has come that the next decision does not wait for."""
        self.plan: ModelPlan | None = None
        """The best one; None: nothing can be planned yet."""
        self.waits = ""
        """Why the next change has to wait; empty: there is none."""

    async def run(self) -> None:
        """Lead when nobody else does, and decide twice a second if that is no great work, until cancelled."""
        while True:
            self._is_urgent.clear()
            if self.desired.lead():
                try:
                    await self.decide()
                except Exception:  # the edge of the task: unseen, nothing would be planned any more
                    log.exception("plan_failed")
            else:
                self._end_sessions()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(_DECIDE_SECONDS, self._finder.pause_seconds)):
                    await self._is_urgent.wait()

    def close(self) -> None:
        """End all streams, as the router stops."""
        self._end_sessions()
        self.desired.close()

    def _end_sessions(self) -> None:
        """End all streams: agents go on, and come to whoever leads."""
        for session in self._sessions.values():
            session.end()

    def take(self, session: AgentSession, report: messages.SuperviseRequest) -> None:
        """Take the report of a machine; the last stream of a name is the machine's."""
        earlier = self._sessions.get(report.machine_id)
        if earlier is not session:
            self._sessions[report.machine_id] = session
            session.orders = {
                each.name: ModelOrder(
                    name=each.name,
                    source=wanted.source,
                    is_served=each.stage in _HELD,
                    kv_byte_count=each.kv_byte_count,
                )
                for each in report.models
                if (wanted := self.desired.get(each.name))
            }
            if earlier:
                earlier.end(SupersededError(f"another agent of machine {report.machine_id} has come"))
            log.info("machine_came machine=%s free_bytes=%d", report.machine_id, report.free_byte_count)
        session.report = report
        self._epoch = max(self._epoch, report.epoch)

    def drop(self, session: AgentSession) -> None:
        """Forget a machine whose stream has ended."""
        machine_id = session.report.machine_id
        if self._sessions.get(machine_id) is session:
            del self._sessions[machine_id]
            self._steadiness.note_departure()
            self._is_urgent.set()
            log.info("machine_went machine=%s", machine_id)

    def want(self, model: DesiredModel) -> None:
        """Want a model from now on; what has failed of it is tried again."""
        self._attempts[model.name] = self._attempts.get(model.name, 0) + 1
        self.desired.put(model)
        self._steadiness.hurry()
        self._is_urgent.set()

    def forget(self, name: str) -> None:
        """Know a model no more: its workers end, and no machine stores it."""
        self.desired.remove(name)
        self._steadiness.hurry()
        self._is_urgent.set()

    def note_use(self, name: str) -> None:
        """Take note that a request wants a model."""
        wanted = self.desired.get(name)
        if wanted and wanted.is_on_demand and not wanted.is_unloaded and self.turns.note_use(name):
            self._is_urgent.set()

    async def decide(self) -> None:
        """Work out what should be, and order the next change, if none is going on."""
        self.turns.note_holders(self._holders(_HELD), self._holders((SERVING,)))
        aimed: Holders = {}
        if task := self._task():
            self.plan, today_plan = await self._finder.find(task)
            aimed = self._steadiness.aim(task.today, today_plan, self.plan)
        if are_alike(task, self._task()):  # else it is for what was, before the search
            self._order_next(aimed)

    def _order_next(self, aimed: Holders) -> None:
        changed = {machine: dict(session.orders) for machine, session in self._sessions.items()}
        for machine, orders in changed.items():
            self._store(machine, orders)
        if not self._is_changing():
            held, serving = self._holders(_HELD), self._holders((SERVING,))
            change, self.waits = next_change(aimed, held, serving, self._missing_bytes)
            if change:
                self._carry_out(changed, *change)
        for machine, orders in changed.items():
            if orders != self._sessions[machine].orders:
                self._epoch += 1
                self._sessions[machine].send(self._epoch, orders)

    def _carry_out(self, changed: dict[str, dict[str, ModelOrder]], kind: str, name: str, machine: str) -> None:
        wanted = self.desired.get(name)
        source = wanted.source if wanted else changed[machine][name].source
        order = changed[machine][name] = self._order(name, source, machine, is_served=kind == "load")
        log.info("model_change kind=%s model=%s machine=%s why=%r", kind, name, machine, self._steadiness.why)
        if kind == "load" and self.plan:
            self.turns.note_load(name)
            order.kv_byte_count = self.plan.pool_bytes(name, machine)

    def _store(self, machine: str, orders: dict[str, ModelOrder]) -> None:
        """Have a machine store what is wanted: a folder wherever it is, a hub's model where there is most room."""
        free = {each: session.report.free_byte_count for each, session in self._sessions.items()}
        for name in [name for name, known in orders.items() if not (known.is_served or self.desired.get(name))]:
            del orders[name]
        for model in self.desired:
            name, source, attempt = model.name, model.source, self._attempts.get(model.name, 0)
            known = orders.get(name)
            if known and not known.is_served and (model.is_unloaded or machine in model.excluded_machines):
                del orders[name]
            elif known and known.attempt < attempt and self._sessions[machine].models[name].stage not in _HELD:
                orders[name] = self._order(name, source, machine, is_served=known.is_served)
            elif known is None and not model.is_unloaded and machine not in model.excluded_machines:
                is_elsewhere = any(name in session.orders for session in self._sessions.values())
                usable = free.keys() & set(model.pinned_machines) or free.keys()
                is_first = not is_elsewhere and machine == max(sorted(usable), key=free.__getitem__)
                is_given = machine in model.pinned_machines and bool(self._givers(name, machine))
                if model.source.startswith(("/", "~", ".")) or is_first or is_given:
                    orders[name] = self._order(name, source, machine, is_served=False)

    def _order(self, name: str, source: str, machine: str, *, is_served: bool) -> ModelOrder:
        addresses = filter(None, (self._sessions[each].report.weight_address for each in self._givers(name, machine)))
        attempt = self._attempts.get(name, 0)
        return ModelOrder(name=name, source=source, is_served=is_served, attempt=attempt, weight_addresses=addresses)

    def _givers(self, name: str, machine: str) -> list[str]:
        """Return the other machines that have a model's files, or are getting them: those that serve it first."""
        stages = {
            each: told.stage for each, told in self._by_machine(name) if each != machine and told.stage in _GIVING
        }
        return sorted(stages, key=lambda each: _GIVING.index(stages[each]))

    def _task(self) -> PlanTask | None:
        """Return what is planned for; None: nothing can be."""
        wanted, held = self._wanted(), self._holders(_HELD)
        if not wanted or not self._sessions:
            return None
        today = {each.name: held.get(each.name, frozenset()) for each in wanted}
        return PlanTask(tuple(self._machines()), tuple(wanted), self._links(), today)

    def _wanted(self) -> list[WantedModel]:
        """Return the models to be served now whose size is known; those on demand by their turns."""
        found = []
        for model in self.desired:
            if any(node.report and node.report.has_work for node in self._state.nodes.of_model(model.name)):
                self.turns.used_at[model.name] = self._clock()
            keep = seconds_from_duration(model.keep_alive) or KEEP_ALIVE_SECONDS
            is_idle = model.is_on_demand and self.turns.is_idle(model.name, keep)
            known = [each for each in self._reports(model.name) if each.HasField("shape")]
            if known and not is_idle and not model.is_unloaded:
                size = self._shape(known[0]), max(each.weight_byte_count for each in known)
                found.append(self._wanted_model(model, *size))
        turns = sorted((each for each in found if each.rank), key=lambda each: self.turns.rank(each.name))
        ranks = {each.name: rank for rank, each in enumerate(turns, 1)}
        return [replace(each, rank=ranks.get(each.name, 0)) for each in found]

    def _wanted_model(self, model: DesiredModel, shape: ModelShape, weight_bytes: int) -> WantedModel:
        failed = {machine for machine, each in self._by_machine(model.name) if not _can_serve(each)}
        return WantedModel(
            model.name,
            shape,
            weight_bytes,
            self._state.demand.of_model(model.name, Demand()),
            min_replicas=max(1, model.min_replica_count),
            max_replicas=model.max_replica_count or int(model.is_on_demand),
            pinned=frozenset(model.pinned_machines),
            excluded=frozenset(model.excluded_machines) | failed,
            rank=int(model.is_on_demand),
        )

    async def forecast(self, model: DesiredModel) -> list[str]:
        """Return what it would come to if a model were wanted as it says, in lines for people; nothing changes."""
        name, machines, plan = model.name, self._machines(), None
        if model.is_unloaded:
            held = [(machine, each.held_byte_count) for machine, each in self._by_machine(name) if each.held_byte_count]
            sizes = ", ".join(f"{told(num_bytes)} on {machine}" for machine, num_bytes in held)
            return [f"{sizes or 'nothing'} would come back once the requests of {name} have ended; its files stay"]
        if not machines:
            return ["no machine with an agent is there"]
        known = next((each for each in self._reports(name) if each.HasField("shape")), None)
        if shape := self._shape(known) if known else await self._shape_here(model.source):
            size = shape, known.weight_byte_count if known else shape.weight_bytes
            wanted = [*(each for each in self._wanted() if each.name != name), self._wanted_model(model, *size)]
            plan = await self._finder.forecast(PlanTask(tuple(machines), tuple(wanted), self._links(), {}))
        usable = {each.machine_id: each.usable_bytes for each in machines}
        until = [f"{name} would only be stored until a request for it comes; then:"] if model.is_on_demand else []
        return [*until, *load_forecast(name, usable, plan, self._holders(_HELD))]

    async def _shape_here(self, source: str) -> ModelShape | None:
        """Return the shape of a folder's model in the widest numbers of a node; None: it is none of this machine."""
        parameter_bytes = max((node.description.layout.dtype.num_bytes for node in self._state.nodes), default=4)
        with suppress(OSError, ConfigurationError):
            return await asyncio.to_thread(shape_of_folder, Path(source), parameter_bytes)
        return None

    def _machines(self) -> list[Machine]:
        return [
            Machine(
                machine,
                self._profile(session),
                max(0, session.report.free_byte_count + sum(each.held_byte_count for each in session.report.models)),
                frozenset(each.name for each in session.report.models if each.stage in _HELD),
                pools={each.name: each.kv_byte_count for each in session.report.models if each.stage in _HELD},
            )
            for machine, session in sorted(self._sessions.items())
        ]

    def _profile(self, session: AgentSession) -> NodeProfile:
        """Return a machine's speed, as a worker on it has measured it: one of its agent's, or the one beside that."""
        report = session.report
        own = {each.node_id for each in report.models} | {report.machine_id}
        beside = [node for node in self._state.nodes if node.description.address.endswith(report.weight_address or "-")]
        for node in (*(node for node in self._state.nodes if node.description.node_id in own), *beside):
            return self._state.corrected_profile(node.description)
        return profile_from_proto(report.profile) if report.HasField("profile") else _USUAL

    def _shape(self, model: MachineModel) -> ModelShape:
        nodes = self._state.nodes.of_model(model.name)
        return nodes[0].description.shape if nodes else shape_from_proto(model.shape)

    def _links(self) -> Mapping[tuple[str, str], Link]:
        """Return the links among machines, as their workers have measured them."""
        machine_of = {
            each.node_id: machine for machine, session in self._sessions.items() for each in session.report.models
        }
        return {
            (machine_of[sender], machine_of[node.description.node_id]): Link(
                link.bytes_per_second, link.round_trip_seconds, is_measured=True
            )
            for node in self._state.nodes
            for sender, link in node.links.items()
            if sender in machine_of and node.description.node_id in machine_of
        }

    def _missing_bytes(self, name: str, machine: str) -> int:
        assert self.plan is not None
        wanted = next(each for each in self.plan.wanted if each.name == name)
        report, needed = self._sessions[machine].report, wanted.fixed_bytes + self.plan.kv_bytes(name, machine)
        untouched = (
            max(0, each.weight_byte_count + each.kv_byte_count - each.held_byte_count)
            for each in report.models
            if each.stage in _HELD and each.kv_byte_count
        )
        return needed + sum(untouched) - report.free_byte_count

    def _is_changing(self) -> bool:
        """Return whether a machine has not taken its orders yet, or a worker of it comes or goes."""
        return any(
            session.report.epoch < session.epoch or any(each.stage in _MOVING for each in session.report.models)
            for session in self._sessions.values()
        )

    def _holders(self, stages: tuple[messages.ModelStage, ...]) -> Holders:
        found: dict[str, set[str]] = {}
        for machine, session in self._sessions.items():
            for each in session.report.models:
                order = session.orders.get(each.name)
                is_ordered = order is not None and order.is_served and stages == _HELD and _can_serve(each)
                if each.stage in stages or is_ordered:
                    found.setdefault(each.name, set()).add(machine)
        return {name: frozenset(machines) for name, machines in found.items()}

    def _by_machine(self, name: str) -> Iterator[tuple[str, MachineModel]]:
        for machine, session in sorted(self._sessions.items()):
            if known := session.models.get(name):
                yield machine, known

    def _reports(self, name: str) -> list[MachineModel]:
        return [each for _, each in self._by_machine(name)]

    def states(self) -> list[messages.ModelState]:
        """Return how every model stands, by name: wanted ones, and others that nodes serve."""
        served = {node.description.model_id for node in self._state.nodes}
        return [self.state_of(name) for name in sorted(served | {each.name for each in self.desired})]

    def state_of(self, name: str) -> messages.ModelState:
        """Return how a model stands."""
        wanted = self.desired.get(name)
        state = messages.ModelState(desired=wanted or DesiredModel(name=name), stage=messages.MODEL_STAGE_ABSENT)
        for machine, each in self._by_machine(name):
            state.machines[machine].CopyFrom(each)
        nodes = [node for node in self._state.nodes.of_model(name) if node.description.can_decode]
        state.serving_count = sum(not self._state.nodes.unusable_reason(node) for node in nodes)
        stages = {each.stage for each in state.machines.values()}
        if state.machines and all(each.problem for each in state.machines.values()):
            stages = {FAILED}  # none is left that might have it
        state.stage = next((stage for stage in (*_NEAREST, FAILED, STORED) if stage in stages), state.stage)
        if state.serving_count:
            state.stage = SERVING
        elif state.stage == SERVING:
            state.stage = messages.MODEL_STAGE_LOADED  # the router has not heard of its node yet
        if state.stage in (messages.MODEL_STAGE_ABSENT, FAILED):
            state.problem = "; ".join(f"{key}: {each.problem}" for key, each in state.machines.items() if each.problem)
        is_wanted = wanted is not None and not wanted.is_unloaded and state.stage != SERVING
        if is_wanted and not state.problem:
            has_room = self.plan is None or self.plan.holders.get(name) != frozenset()
            left = [each.total_byte_count - each.done_byte_count for each in state.machines.values()]
            seconds = ready_seconds(max(0, 0, *left))
            state.problem = self.waits
            if not has_room:
                turns = {each: self.turns.left_seconds(each) for each in self._holders(_HELD)}
                first = min((each for each in turns if turns[each] > 0), key=turns.__getitem__, default="")
                seconds += turns.get(first, 0.0)
                turn = f"; {first} has its turn for {turns[first]:.0f} s more" if first else ""
                state.problem = why_nowhere(state.desired.pinned_machines, self._sessions) + turn
            state.ready_in.CopyFrom(duration_from_seconds(seconds))
        return state

    def listed(self) -> messages.ListModelsResponse:
        """Return all models, machines, and the plan."""
        free = {machine: session.report.free_byte_count for machine, session in self._sessions.items()}
        lines = plan_lines(self.plan, "; ".join(filter(None, (self._steadiness.why, self.waits))))
        return messages.ListModelsResponse(
            models=self.states(), machine_free_byte_counts=free, plan=lines, epoch=self._epoch
        )


def _can_serve(model: MachineModel) -> bool:
    is_absent = model.stage == messages.MODEL_STAGE_ABSENT and bool(model.problem)
    return model.stage != FAILED and not is_absent
