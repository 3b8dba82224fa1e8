"""Random clusters of unlike mocks under load: the plan beside the best machine alone and the best replicas, measured.

`make matrix`, as root, with iproute2. Each cluster is three machines behind links of random rates; all three ways to
serve get the same requests at the same moments, from real processes. BATON_CLUSTERS=0,1,2 measures some of them; the
results keep the last run of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from baton.capacity.hardware import PRESETS
from baton.capacity.planning.pricing import Demand, Machine, WantedModel
from baton.capacity.planning.search import ModelPlan, PlanSearch
from baton.capacity.reference_models import QWEN3_0_6B
from baton.capacity.snapshot import Link
from baton.demo import checkpoint_dir
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.router_service_pb2 import ListNodesRequest, PlacementPin, PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import SamplingParameters
from bench.results_file import describe_machine, write_results
from house.repository import ROOT
from system.joining.machines import HERE, JoiningMachine, machines

pytestmark = [
    pytest.mark.skipif(
        "BATON_MATRIX" not in os.environ or sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("tc"),
        reason="takes minutes and root: run `make matrix`",
    ),
    pytest.mark.timeout(2400),
]
NUM_CLUSTERS, NUM_MACHINES, NUM_REQUESTS = 10, 3, 24
NUM_ROUNDS = 3
"""How often the requests of a cluster come again: of 24 one alone that is late is more than what may be missed."""
LEAST_RATIO = 0.97
MODEL, ROUTER, PORT = "tiny", f"{HERE}:18910", 18920
SHAPE = QWEN3_0_6B
_RESULTS = ROOT / "bench" / "results" / "plans.json"
_READY_SECONDS = 120.0
Pairs = frozenset[tuple[str, str]]
"""(decode node, prefill node) among which a router chooses; an empty second one: the decode node itself."""


class Arrival(NamedTuple):
    """One request."""

    seconds: float
    num_prompt_tokens: int
    num_output_tokens: int


class Problem(NamedTuple):
    """A cluster and what is asked of it."""

    hardware: Mapping[str, tuple[str, float]]
    """Preset of each machine, and how many times as slow as that it is."""
    link_rates: Mapping[str, float]
    """Bytes per second that each machine sends."""
    wanted: WantedModel
    trace: Sequence[Arrival]

    def search(self) -> PlanSearch:
        """Return a search of its best plan."""
        found = [
            Machine(name, PRESETS[preset].profile().slowed(scale, scale), 10**12)
            for name, (preset, scale) in self.hardware.items()
        ]
        pairs = product(self.hardware, self.hardware)
        links = {(left, right): Link(self.link_rates[left], 1e-3) for left, right in pairs if left != right}
        return PlanSearch(found, [self.wanted], links, Link(1e8, 1e-3))


class Measured(NamedTuple):
    """What a way to serve came to."""

    requests_per_second: float
    goodput: float
    """Requests a second of those that took no longer than the objective."""
    mean_seconds: float


def random_problem(rng: random.Random) -> Problem:
    """Return unlike machines, links, and more work than most machines can do alone."""
    names = [f"baton-m{number}" for number in range(1, NUM_MACHINES + 1)]
    hardware = {}
    for name in names:
        preset = rng.choice(("dgx-spark", "m3-ultra", "m2", "a100"))
        prompt_seconds = SHAPE.prefill_flop(0, 512) / PRESETS[preset].profile().prefill_flops
        hardware[name] = preset, round(min(100.0, max(0.1, 10 ** rng.uniform(-1.1, -0.3) / prompt_seconds)), 2)
    rates = {name: 10 ** rng.uniform(7.3, 8.3) for name in names}
    sizes = [(rng.randint(256, 640), rng.choice((8, 16, 32))) for _ in range(NUM_REQUESTS)]
    means = [round(sum(each) / NUM_REQUESTS) for each in zip(*sizes, strict=True)]
    replicas = rng.choice((0, 0, 2))
    problem = Problem(hardware, rates, _wanted(Demand(0.1, *means), replicas), ())
    alone = {each.decode_node_id: each for each in problem.search()._pricers[0].candidates if each.is_local}
    rate = rng.uniform(0.4, 0.9) * sum(1 / each.estimate.total_seconds for each in alone.values() if each.estimate)
    now, trace = 0.0, []
    for size in sizes:
        now += rng.expovariate(rate)
        trace.append(Arrival(now, *size))
    whole = [each._replace(seconds=each.seconds + number * now) for number in range(NUM_ROUNDS) for each in trace]
    return problem._replace(wanted=_wanted(Demand(rate, *means), replicas), trace=whole)


def _wanted(demand: Demand, max_replicas: int) -> WantedModel:
    return WantedModel(MODEL, SHAPE, SHAPE.weight_bytes, demand, max_replicas=max_replicas)


def _best_alone(problem: Problem, count: int) -> Pairs:
    """Return the best so many machines of which each serves by itself, by their price."""
    search = problem.search()
    (pricer,) = search._pricers
    masks = [mask for mask in range(1, 1 << NUM_MACHINES) if mask.bit_count() <= count and pricer.allows(mask)]
    ways = {mask: way for mask in masks if (way := pricer._way(mask, alone=True))}
    best = min(ways, key=lambda mask: ways[mask].price.cost)
    return frozenset((name, "") for index, name in enumerate(problem.hardware) if best >> index & 1)


def _planned(plan: ModelPlan) -> Pairs:
    holders = plan.holders[MODEL]
    return frozenset((left, right if left != right else "") for left, right in product(holders, holders))


@contextmanager
def _serving(problem: Problem, made: Sequence[JoiningMachine], folder: Path) -> Iterator[None]:
    """Run a router here and a worker on each machine."""
    with ExitStack() as stack:
        flags = (f"--host={HERE}", f"--port={ROUTER.rpartition(':')[2]}", "--insecure", "--log-level=warning")
        log = stack.enter_context((folder / "router.log").open("ab"))
        command = (sys.executable, "-m", "baton.cli", "serve", "router", *flags)
        router = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(router.wait)
        stack.callback(router.send_signal, signal.SIGKILL)
        for machine in made:
            preset, scale = problem.hardware[machine.namespace]
            machine.shape(8 * problem.link_rates[machine.namespace])
            where = (f"--host={machine.address}", f"--port={PORT}", "--insecure", f"--node-id={machine.namespace}")
            mock = ("--engine=mock", f"--mock-hardware={preset}", f"--mock-time-scale={scale}", "--num-blocks=2048")
            model = (f"--model-dir={checkpoint_dir()}", f"--model-name={MODEL}", "--mock-shape=qwen3-0.6b")
            machine.start("serve", "worker", *where, *mock, *model, f"--router-address={ROUTER}", "--dtype=bfloat16")
            stack.callback(machine.fail)
        _wait_until_acquainted()
        yield


def _wait_until_acquainted() -> None:
    deadline = time.monotonic() + _READY_SECONDS
    with grpc.insecure_channel(ROUTER) as channel:
        stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        while True:
            try:
                nodes = stub.ListNodes(ListNodesRequest(), timeout=5.0).nodes
                if sum(len(node.links) == NUM_MACHINES - 1 for node in nodes) == NUM_MACHINES:
                    return
            except grpc.RpcError:
                pass
            assert time.monotonic() < deadline, "workers and their links are not known"
            time.sleep(0.2)  # processes tell nobody


async def _drive(problem: Problem, pairs: Pairs, name: str) -> Mapping[int, float]:
    """Return the seconds of each request, and under -1 those from the first arrival to the last end."""
    pins = [PlacementPin(decode_node_id=decode, prefill_node_id=prefill) for decode, prefill in sorted(pairs)]
    seconds: dict[int, float] = {}
    async with ExitStackOfChannels(problem) as (router, decoders):
        began = time.monotonic()

        async def ask(number: int, arrival: Arrival) -> None:
            await asyncio.sleep(max(0.0, began + arrival.seconds - time.monotonic()))
            request_id, started = f"{name}-{number}", time.monotonic()
            counts = {"prompt_token_count": arrival.num_prompt_tokens, "max_token_count": arrival.num_output_tokens}
            place = PlaceRequest(request_id=request_id, model_id=MODEL, pins=pins, bypass_prefix_cache=True, **counts)
            placement = (await router.Place(place, timeout=30)).placement
            request = DecodeServiceGenerateRequest(
                request_id=request_id,
                attempt=1,
                model_id=MODEL,
                prompt_token_ids=[3 + (number * 31 + place) % 200 for place in range(arrival.num_prompt_tokens)],
                sampling=SamplingParameters(temperature=0, ignore_eos=True, max_token_count=arrival.num_output_tokens),
                placement=placement,
                bypass_prefix_cache=True,
            )
            async for _ in decoders[placement.decode_node_id].Generate(request, timeout=600):
                pass
            seconds[number] = time.monotonic() - started

        async with asyncio.TaskGroup() as group:
            for number, arrival in enumerate(problem.trace):
                group.create_task(ask(number, arrival))
        seconds[-1] = time.monotonic() - began
    return seconds


class ExitStackOfChannels:
    """Stubs of the router and of each worker, for as long as the context lasts."""

    def __init__(self, problem: Problem) -> None:
        addresses = {name: f"10.79.0.{name.removeprefix('baton-m')}:{PORT}" for name in problem.hardware}
        self._router = grpc.aio.insecure_channel(ROUTER)
        self._workers = {name: grpc.aio.insecure_channel(address) for name, address in addresses.items()}

    async def __aenter__(self) -> tuple[RouterServiceStub, Mapping[str, DecodeServiceStub]]:
        stubs = {name: DecodeServiceStub(channel) for name, channel in self._workers.items()}  # type: ignore[no-untyped-call]
        return RouterServiceStub(self._router), stubs  # type: ignore[no-untyped-call]

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._router, *self._workers.values()):
            await channel.close()


def _measured(seconds: Mapping[int, float], objective_seconds: float) -> Measured:
    makespan, served = seconds[-1], [each for number, each in seconds.items() if number >= 0]
    num_good = sum(each <= objective_seconds for each in served)
    return Measured(len(served) / makespan, num_good / makespan, sum(served) / len(served))


def test_the_plan_serves_as_well_as_the_best_machine_and_the_best_replicas(tmp_path: Path) -> None:
    """In requests a second, and in those within the objective: twice what the middle request took with replicas."""
    rows: list[dict[str, Any]] = []
    chosen = os.environ.get("BATON_CLUSTERS", "")
    with machines(NUM_MACHINES, tmp_path, 1e9) as made:
        for number in map(int, chosen.split(",") if chosen else range(NUM_CLUSTERS)):
            problem = random_problem(random.Random(500 + number))
            plan = problem.search().best()
            most = problem.wanted.max_replicas or NUM_MACHINES
            ways = {"replicas": _best_alone(problem, most), "single": _best_alone(problem, 1), "plan": _planned(plan)}
            with _serving(problem, made, tmp_path):
                asyncio.run(_drive(problem._replace(trace=problem.trace[:4]), ways["plan"], f"{number}-warm"))
                took = {name: asyncio.run(_drive(problem, pairs, f"{number}-{name}")) for name, pairs in ways.items()}
            objective = 2 * sorted(took["replicas"].values())[len(took["replicas"]) // 2]
            measured = {name: _measured(seconds, objective) for name, seconds in took.items()}
            rows.append(
                {
                    "cluster": number,
                    "machines": [f"{preset} / {scale}" for preset, scale in problem.hardware.values()],
                    "links_bytes_per_second": [round(rate) for rate in problem.link_rates.values()],
                    "demand": problem.wanted.demand._asdict(),
                    "pairs": {name: sorted(pairs) for name, pairs in ways.items()},
                    "objective_seconds": round(objective, 3),
                    "measured": {name: each._asdict() for name, each in measured.items()},
                }
            )
            print(number, {name: [round(value, 3) for value in each] for name, each in measured.items()}, flush=True)
            rows[-1] |= {"least_ratio": round(_worst(rows[-1]["measured"]), 3), **_where()}
            known = json.loads(_RESULTS.read_text())["clusters"] if _RESULTS.exists() else []
            kept = {row["cluster"]: row for row in (*known, *rows)}
            write_results(_RESULTS, {"clusters": [kept[each] for each in sorted(kept)]})

    assert {row["cluster"]: row["least_ratio"] for row in rows if row["least_ratio"] < LEAST_RATIO} == {}


def _where() -> dict[str, object]:
    """Return at which commit, on what and how busy a machine this is."""
    machine = describe_machine()
    return {key: machine[key] for key in ("commit", "is_modified", "processor", "load_average")}


def _worst(measured: Mapping[str, Mapping[str, float]]) -> float:
    """Return the least ratio of the plan to another way."""
    return min(
        measured["plan"][unit] / max(measured[other][unit], 1e-9)
        for other in ("single", "replicas")
        for unit in ("requests_per_second", "goodput")
    )
