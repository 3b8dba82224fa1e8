"""What machines are ordered, as models are wanted and machines come, go and report."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from baton.capacity.planning.search import PlanSearch
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.internal.v1 import model_service_pb2 as messages
from baton.internal.v1.model_service_pb2 import DesiredModel, MachineModel, ModelOrder
from baton.kv.kv_format import KvDtype
from baton.router.models import plan_task
from baton.router.models.agent_session import AgentSession
from baton.router.models.desired import DesiredModels
from baton.router.models.plan_task import PlanTask
from baton.router.models.supervision import ModelSupervision
from baton.router.state import RouterState, StateLimits
from baton.wire.quantities import shape_to_proto
from router.samples import IDLE, MAC, busy_report

GIGABYTE = 10**9
WEIGHTS = LLAMA_3_1_8B.weight_bytes


@dataclass
class FakeMachine:
    """An agent whose orders are carried out at the next step."""

    name: str
    gigabytes: int
    session: AgentSession = field(default_factory=AgentSession)
    loads: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    lost_bytes: int = 0

    def report(self, orders: dict[str, ModelOrder]) -> messages.SuperviseRequest:
        """Return what it tells once the orders are carried out."""
        served = {name for name, order in orders.items() if order.is_served}
        self.loads += sorted(served - self.held)
        self.held = served
        models = [
            MachineModel(
                name=name,
                stage=messages.MODEL_STAGE_SERVING if name in served else messages.MODEL_STAGE_STORED,
                shape=shape_to_proto(LLAMA_3_1_8B),
                weight_byte_count=WEIGHTS,
                held_byte_count=WEIGHTS if name in served else 0,
                kv_byte_count=orders[name].kv_byte_count,
            )
            for name in orders
        ]
        free = self.gigabytes * GIGABYTE - WEIGHTS * len(served) - self.lost_bytes
        return messages.SuperviseRequest(
            machine_id=self.name,
            free_byte_count=free,
            models=models,
            epoch=self.session.epoch,
            weight_address=f"{self.name}:8040",
        )


class Cluster:
    """A router's supervision over fake machines and a fake clock."""

    def __init__(self, *machines: FakeMachine) -> None:
        self.now = 1000.0
        limits = StateLimits(stuck_seconds=1, silent_seconds=1, assumed_ttl_seconds=1)
        self.state = RouterState(lambda: self.now, limits)
        self.supervision = ModelSupervision(DesiredModels(), self.state, lambda: self.now, lambda: 1)
        self.machines = {machine.name: machine for machine in machines}
        self.away: set[str] = set()

    def step(self, num_steps: int = 4, seconds: float = 0.5) -> None:
        """Let machines report and the router decide."""
        for _ in range(num_steps):
            self.now += seconds
            for name, machine in self.machines.items():
                if name not in self.away:
                    self.supervision.take(machine.session, machine.report(machine.session.orders))
            asyncio.run(self.supervision.decide())

    def leave(self, name: str) -> None:
        """Have a machine's connection break; its workers go on."""
        self.away.add(name)
        self.supervision.drop(self.machines[name].session)

    def come_back(self, name: str) -> None:
        """Have it connect again."""
        machine, self.away = self.machines[name], self.away - {name}
        orders = machine.session.orders
        machine.session = AgentSession()
        self.supervision.take(machine.session, machine.report(orders))

    @property
    def loads(self) -> list[str]:
        """Return what was loaded, wherever."""
        return [load for machine in self.machines.values() for load in machine.loads]


def _wanted(name: str = "llama", **fields: object) -> DesiredModel:
    return DesiredModel(name=name, source=f"/models/{name}", **fields)  # type: ignore[arg-type]


def test_a_wanted_model_is_loaded_and_an_unloaded_one_goes() -> None:
    """On all machines that it fits on; an operator's word ends it."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 40), FakeMachine("small", 8))
    cluster.supervision.want(_wanted())
    cluster.step(200)

    assert {name: machine.held for name, machine in cluster.machines.items()} == {
        "a": {"llama"},
        "b": {"llama"},
        "small": set(),
    }
    cluster.supervision.want(_wanted(is_unloaded=True))
    cluster.step()
    assert not any(machine.held for machine in cluster.machines.values())


def test_a_model_that_is_pinned_to_a_machine_which_is_away_says_so() -> None:
    """There may well be room elsewhere."""
    cluster = Cluster(FakeMachine("a", 40))
    cluster.supervision.want(_wanted(pinned_machines=["mac"]))
    cluster.step(20)

    told = "none of the machines that it is pinned to is there: mac"
    assert cluster.supervision.state_of("llama").problem == told
    assert any(f"llama: nowhere: {told}" in line for line in cluster.supervision.listed().plan)
    assert not cluster.loads


def test_a_forgotten_model_goes_from_all_machines_and_lists() -> None:
    """Whether it is served, or never came; its name may be taken anew."""
    cluster = Cluster(FakeMachine("a", 40))
    cluster.supervision.want(_wanted())
    cluster.supervision.want(_wanted("mistyped", is_on_demand=True))
    cluster.step(20)
    assert set(cluster.machines["a"].session.orders) == {"llama", "mistyped"}
    cluster.supervision.forget("mistyped")
    cluster.step()
    assert set(cluster.machines["a"].session.orders) == {"llama"}
    cluster.supervision.forget("llama")
    cluster.step()

    assert not cluster.machines["a"].session.orders
    assert not cluster.machines["a"].held
    assert not cluster.supervision.states()
    cluster.supervision.want(_wanted())
    cluster.step(20)
    assert cluster.loads == ["llama", "llama"]


def test_twenty_flaps_of_a_machine_move_a_model_once() -> None:
    """Whoever has it last keeps it."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 40))
    cluster.supervision.want(_wanted(max_replica_count=1))
    cluster.step(20)
    holder = next(name for name, machine in cluster.machines.items() if machine.held)
    for _ in range(20):
        cluster.leave(holder)
        cluster.step(20)
        cluster.come_back(holder)
        cluster.step(20)

    assert len(cluster.loads) == 2  # the first, and one move
    assert all("llama" in machine.held for machine in cluster.machines.values())


def test_a_hundred_first_requests_load_a_model_once_and_quiet_unloads_it() -> None:
    """It is only stored until then."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 40))
    cluster.supervision.want(_wanted(is_on_demand=True))
    cluster.step(20)
    assert cluster.loads == []
    for _ in range(100):
        cluster.supervision.note_use("llama")
        asyncio.run(cluster.supervision.decide())
    cluster.step(20)

    assert cluster.loads == ["llama"]
    cluster.step(20, seconds=20.0)
    assert not any(machine.held for machine in cluster.machines.values())


def test_a_model_that_still_answers_is_not_idle() -> None:
    """However long ago its last request came."""
    cluster = Cluster(FakeMachine("a", 40))
    model = _wanted(is_on_demand=True)
    model.keep_alive.FromSeconds(10)
    cluster.supervision.want(model)
    cluster.supervision.note_use("llama")
    cluster.step(20)
    node = cluster.state.nodes.register(replace(MAC, model_id="llama"))
    for step in range(60):
        cluster.state.nodes.report(node, busy_report(step_count=step, num_running=1))
        cluster.step(1)
    assert cluster.machines["a"].held == {"llama"}
    cluster.state.nodes.report(node, IDLE)
    cluster.step(60)

    assert cluster.machines["a"].held == set()


def test_memory_counts_once_it_is_measured_to_be_back() -> None:
    """The next model waits until the report says so, not until the worker is said to be gone."""
    machine = FakeMachine("a", 24)
    cluster = Cluster(machine)
    cluster.supervision.want(_wanted("one"))
    cluster.step()
    machine.lost_bytes = WEIGHTS
    cluster.supervision.want(_wanted("one", is_unloaded=True))
    cluster.supervision.want(_wanted("two"))
    cluster.step()
    assert machine.held == set()
    assert "no machine has room" in cluster.supervision.state_of("two").problem
    machine.lost_bytes = 0
    cluster.step()

    assert machine.held == {"two"}


@pytest.mark.parametrize("pinned", [[], ["a", "b", "c"]])
def test_one_machine_asks_the_hub_and_the_others_take_it_from_that_one(pinned: list[str]) -> None:
    """Also where all of them are named at once."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 41), FakeMachine("c", 40))
    wanted = DesiredModel(name="llama", source="org/llama", pinned_machines=pinned, min_replica_count=3)
    first_orders: dict[str, ModelOrder] = {}
    cluster.supervision.want(wanted)
    for _ in range(200):
        cluster.step(1)
        for name, machine in cluster.machines.items():
            for order in machine.session.orders.values():
                first_orders.setdefault(name, order)

    assert [name for name, order in first_orders.items() if not order.weight_addresses] == ["b"]  # has most room
    assert all("b:8040" in order.weight_addresses for name, order in first_orders.items() if name != "b")
    assert all(machine.held for machine in cluster.machines.values())


def test_a_pin_moves_a_model_by_loading_it_there_before_it_goes_here() -> None:
    """Somebody serves it all the while."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 40))
    cluster.supervision.want(_wanted(pinned_machines=["a"]))
    cluster.step()
    cluster.supervision.want(_wanted(pinned_machines=["b"]))
    served = []
    for _ in range(200):
        cluster.step(1)
        served.append({name for name, machine in cluster.machines.items() if machine.held})

    assert all(served)
    assert served[-1] == {"b"}


def test_a_hot_model_delays_a_cold_one_by_one_turn_at_most() -> None:
    """Who waits for a place gets it once who has it has had its turn; who never ceases to be asked for comes again."""
    cluster = Cluster(FakeMachine("a", 24))
    for name in ("hot", "cold"):
        cluster.supervision.want(_wanted(name, is_on_demand=True))
    waited = [0.0]  # by each request for the cold one
    for step in range(1200):  # ten minutes
        held = cluster.machines["a"].held
        cluster.supervision.turns.used_at["hot"] = cluster.now  # as each placement says
        if "hot" not in held:
            cluster.supervision.note_use("hot")
        if "cold" not in held and step % 100 < 90:
            waited[-1] += 0.5
            cluster.supervision.note_use("cold")
            assert cluster.supervision.state_of("cold").ready_in.seconds <= 33
        elif waited[-1]:
            waited.append(0.0)
        cluster.step(1)

    assert len(waited) > 8
    assert max(waited) <= 30 + 3  # the turn, and two changes
    assert 12 <= len(cluster.loads) <= 21


def test_what_a_change_would_come_to_is_said_before_anybody_agrees() -> None:
    """Where it would go, what it would take there, what else would leave; and nothing happens."""
    cluster = Cluster(FakeMachine("a", 24), FakeMachine("b", 20))
    cluster.supervision.want(_wanted("one", min_replica_count=2, is_on_demand=True))
    cluster.step()
    cluster.supervision.note_use("one")
    cluster.step(20)
    cluster.supervision.want(_wanted("two", is_unloaded=True, pinned_machines=["a"]))
    loads = cluster.loads
    told = {
        name: "\n".join(asyncio.run(cluster.supervision.forecast(_wanted(name, **fields))))
        for name, fields in {
            "one": {"pinned_machines": ["b"]},
            "gone": {"is_unloaded": True},
            "org/unseen": {},
        }.items()
    }

    assert "one would be served by b (both): 15 GB of weights" in told["one"]
    assert "a request of 1024 prompt tokens and 256 new ones would take" in told["one"]
    assert told["gone"] == "nothing would come back once the requests of gone have ended; its files stay"
    assert told["org/unseen"].startswith("the size of org/unseen is known once one machine has its files: a has most")
    cluster.step(20)
    assert cluster.loads == loads


def test_the_event_loop_goes_on_while_somebody_asks_what_a_change_would_come_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the search takes: here until the loop has done something else."""
    cluster = Cluster(FakeMachine("a", 40))
    cluster.supervision.want(_wanted())
    cluster.step(10)
    has_gone_on = threading.Event()

    def slow(task: PlanTask) -> PlanSearch:
        assert has_gone_on.wait(20)
        return search(task)

    search = PlanTask.search
    monkeypatch.setattr(PlanTask, "search", slow)

    async def main() -> list[str]:
        asking = asyncio.create_task(cluster.supervision.forecast(_wanted()))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(has_gone_on.set)
        return await asking

    assert any("llama would be served by a" in line for line in asyncio.run(asyncio.wait_for(main(), 30)))


@pytest.mark.parametrize(("dtype", "weights"), [(KvDtype.FLOAT32, "32 GB"), (KvDtype.BFLOAT16, "16 GB")])
def test_a_folder_that_no_machine_has_yet_counts_as_nodes_would_hold_it(
    tmp_path: Path, dtype: KvDtype, weights: str
) -> None:
    """By the headers of its files, which are in bfloat16."""
    cluster = Cluster(FakeMachine("a", 80))
    cluster.step()
    cluster.state.register(replace(MAC, layout=replace(MAC.layout, dtype=dtype)))
    config = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "num_hidden_layers": 32}
    config |= {"intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}
    (tmp_path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [8, 10**9], "data_offsets": [0, 16 * 10**9]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    told = asyncio.run(cluster.supervision.forecast(DesiredModel(name="new", source=str(tmp_path))))

    assert f"{weights} of weights" in "\n".join(told)


def test_requests_for_two_models_that_share_one_place_load_each_a_bounded_number_of_times() -> None:
    """Who has just come stays for a while, whoever else is asked for."""
    cluster = Cluster(FakeMachine("a", 24))
    for name in ("one", "two"):
        cluster.supervision.want(_wanted(name, is_on_demand=True))
    for turn in range(240):  # two minutes, a request every half second
        cluster.supervision.note_use(("one", "two")[turn % 2])
        cluster.step(1)

    assert 2 <= len(cluster.loads) <= 6


def test_the_model_that_is_asked_for_more_gets_the_third_machine() -> None:
    """One place each, and a further one for whichever is in demand; that follows what is asked."""
    cluster = Cluster(*(FakeMachine(name, 24) for name in "abc"))
    for name in ("one", "two"):
        cluster.supervision.want(_wanted(name))
    cluster.step(40)
    for name in ("one", "two"):
        for _ in range(90):  # a quarter of an hour
            for _ in range(40):
                cluster.state.demand.add(name, num_prompt_tokens=2000)
            cluster.step(1, seconds=10.0)
        counts = {each: sum(each in machine.held for machine in cluster.machines.values()) for each in ("one", "two")}

        assert counts == {name: 2, ({"one", "two"} - {name}).pop(): 1}


def test_a_worker_gets_memory_for_the_expected_load_and_keeps_it() -> None:
    """Another model finds the rest free, not what the first one has been given and not touched yet."""
    machine = FakeMachine("a", 100)
    cluster = Cluster(machine)
    cluster.supervision.want(_wanted("one"))
    cluster.step()
    given = machine.session.orders["one"].kv_byte_count
    for name in ("two", "three", "four", "five"):
        cluster.supervision.want(_wanted(name))
        cluster.step()
    orders = [order for order in machine.session.orders.values() if order.is_served]

    assert given >= 1280 * LLAMA_3_1_8B.kv_bytes_per_token
    assert len(orders) > 1
    assert sum(WEIGHTS + order.kv_byte_count for order in orders) < 100 * GIGABYTE
    assert machine.session.orders["one"].kv_byte_count == given


def test_a_plan_for_a_machine_that_has_gone_meanwhile_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop goes on while plans are searched, and whatever comes then counts."""
    cluster = Cluster(FakeMachine("a", 40), FakeMachine("b", 40))
    cluster.step()
    cluster.supervision.want(_wanted())
    is_searching, has_gone = threading.Event(), threading.Event()

    def slow_plans(task: PlanTask) -> object:
        is_searching.set()
        assert has_gone.wait(20)
        return search(task)

    search = plan_task._plans
    monkeypatch.setattr(plan_task, "_plans", slow_plans)
    for machine in cluster.machines.values():
        stored = {"llama": ModelOrder(name="llama", source="/models/llama")}
        cluster.supervision.take(machine.session, machine.report(stored))

    async def main() -> None:
        deciding = asyncio.create_task(cluster.supervision.decide())
        assert await asyncio.to_thread(is_searching.wait, 20)
        cluster.leave("a")
        has_gone.set()
        await deciding

    asyncio.run(asyncio.wait_for(main(), 30))
    assert cluster.machines["b"].session.orders == {}
    cluster.step(20)
    assert cluster.loads == ["llama"]
    assert cluster.machines["b"].held == {"llama"}
