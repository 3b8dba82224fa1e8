"""Which machine should hold which model."""

from __future__ import annotations

import random
import time

import pytest

from baton.capacity.hardware import PRESETS
from baton.capacity.planning.pricing import Demand, Machine, WantedModel
from baton.capacity.planning.search import ModelPlan, PlanSearch
from baton.capacity.reference_models import LLAMA_3_1_8B, LLAMA_3_1_70B, QWEN3_0_6B
from baton.capacity.snapshot import Link
from capacity.planning.random_plans import LINK, best_of_all, random_problem
from order import RUNS_ALL

NUM_SAMPLED, NUM_ALL = 40, 1000
SPARK = Machine("spark", PRESETS["dgx-spark"].profile(), 110 * 10**9)
ULTRA = Machine("ultra", PRESETS["m3-ultra"].profile(), 400 * 10**9)
LONG = Demand(0.05, 8192, 256)


def _wanted(name: str = "llama", **fields: object) -> WantedModel:
    return WantedModel(name, LLAMA_3_1_8B, LLAMA_3_1_8B.weight_bytes, LONG, **fields)  # type: ignore[arg-type]


def _best(machines: list[Machine], *wanted: WantedModel, link: Link = LINK) -> ModelPlan:
    return PlanSearch(machines, wanted, {}, link).best()


def test_the_published_pair_comes_out_as_prefill_and_decode() -> None:
    """The DGX Spark has the FLOP/s, the M3 Ultra the bytes/s; nobody says so but their figures."""
    plan = _best([ULTRA, SPARK], _wanted())

    assert plan.holders == {"llama": {"spark", "ultra"}}
    assert [plan.part("llama", machine) for machine in ("spark", "ultra")] == ["prefill", "decode"]
    alone = PlanSearch([ULTRA, SPARK], [_wanted()], {}, LINK).plan_of({"llama": frozenset({"ultra"})})
    assert alone is not None
    assert plan.price.cost < alone.price.cost


def test_over_a_slow_link_one_machine_serves_and_the_other_is_a_spare() -> None:
    """What it costs to send KV is part of the price."""
    plan = _best([ULTRA, SPARK], _wanted(), link=Link(1e6, 0.0))

    assert {machine: plan.part("llama", machine) for machine in ("spark", "ultra")} in (
        {"spark": "spare", "ultra": "both"},
        {"spark": "both", "ultra": "spare"},
    )


def test_models_share_memory_and_who_comes_later_goes_without() -> None:
    """70 B parameters fill the Mac but for a small model; a model of greater rank finds no room."""
    large = WantedModel("large", LLAMA_3_1_70B, LLAMA_3_1_70B.weight_bytes, LONG)
    small = WantedModel("small", QWEN3_0_6B, QWEN3_0_6B.weight_bytes, LONG)
    late = WantedModel("late", LLAMA_3_1_70B, LLAMA_3_1_70B.weight_bytes, LONG, rank=1)
    tight = Machine("ultra", ULTRA.profile, 160 * 10**9)

    plan = _best([tight, SPARK], late, large, small)

    assert plan.holders["large"] == {"ultra"}
    assert plan.holders["late"] == frozenset()
    assert plan.holders["small"]
    assert plan.kv_bytes("large", "ultra") >= 8448 * LLAMA_3_1_70B.kv_bytes_per_token


def test_pins_and_exclusions_hold_whatever_they_cost() -> None:
    """A pinned model is where it is pinned, or nowhere."""
    assert _best([ULTRA, SPARK], _wanted(pinned=frozenset({"spark"}))).holders == {"llama": {"spark"}}
    assert _best([ULTRA, SPARK], _wanted(excluded=frozenset({"ultra"}))).holders == {"llama": {"spark"}}
    assert _best([ULTRA, SPARK], _wanted(pinned=frozenset({"gone"}))).holders == {"llama": frozenset()}
    assert _best([ULTRA, SPARK], _wanted(max_replicas=1)).holders == {"llama": {"ultra"}}


@pytest.mark.parametrize("num_problems", [NUM_ALL if RUNS_ALL else NUM_SAMPLED])
def test_the_plan_is_the_best_of_all(num_problems: int) -> None:
    """Up to six machines and three models, by trying every combination."""
    rng = random.Random(20)
    for _ in range(num_problems):
        most = 6 if num_problems == NUM_ALL else 4
        problem = random_problem(rng, rng.randint(1, most), rng.randint(1, 3))

        assert problem.search().best().price == best_of_all(problem)


def test_sixteen_machines_are_planned_within_a_second() -> None:
    """And the plan is no worse than the best single machines or replicas, nor than what is held."""
    rng = random.Random(16)
    for _ in range(2):
        problem = random_problem(rng, 16, 3)
        began = time.process_time()
        search = problem.search()
        plan = search.best()
        seconds = time.process_time() - began

        singles, replicas = search._added(is_single=True), search._added(is_single=False)
        assert plan.price <= min(search.price(singles), search.price(replicas))
        assert plan.price.missing or plan.price.cost >= plan.bound
        assert seconds < 1.0
