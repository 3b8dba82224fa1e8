"""Random clusters with several wanted models, seeded, and the best plan by trying all of them."""

from __future__ import annotations

import random
from itertools import product
from typing import NamedTuple

import numpy as np

from baton.capacity.hardware import PRESETS
from baton.capacity.planning.pricing import Demand, Machine, Option, Price, WantedModel, queue_cost
from baton.capacity.planning.search import PlanSearch
from baton.capacity.reference_models import LLAMA_2_7B, LLAMA_3_1_8B, LLAMA_3_1_70B, QWEN3_0_6B
from baton.capacity.snapshot import Link

SHAPES = (QWEN3_0_6B, LLAMA_2_7B, LLAMA_3_1_8B, LLAMA_3_1_70B)
LINK = Link(1.25e9, 1e-3)


class PlanProblem(NamedTuple):
    """What is to be planned."""

    machines: list[Machine]
    wanted: list[WantedModel]
    links: dict[tuple[str, str], Link]

    def search(self) -> PlanSearch:
        """Return a search for it."""
        return PlanSearch(self.machines, self.wanted, self.links, LINK)


def random_problem(rng: random.Random, num_machines: int, num_models: int) -> PlanProblem:
    """Return machines of unlike speed and memory, models with pins, exclusions and demands, and links."""
    names = [f"m{index}" for index in range(num_machines)]
    machines = [
        Machine(
            name,
            PRESETS[rng.choice(list(PRESETS))].profile(),
            rng.choice((16, 24, 48, 96, 128, 192, 512)) * 10**9,
            frozenset(f"model{each}" for each in range(num_models) if rng.random() < 0.3),
            rng.choice(("draining", *[""] * 14)),
        )
        for name in names
    ]
    wanted = []
    for index in range(num_models):
        shape, own = rng.choice(SHAPES), rng.sample(names, rng.randint(1, num_machines))
        wanted.append(
            WantedModel(
                f"model{index}",
                shape,
                shape.weight_bytes,
                Demand(10 ** rng.uniform(-2, 1), rng.choice((128, 1024, 4000)), rng.choice((16, 90))),
                rng.choice((1, 1, 1, 2)),
                rng.choice((0, 0, 1, 2)),
                frozenset(own) if rng.random() < 0.15 else frozenset(),
                frozenset(own) if rng.random() < 0.2 else frozenset(),
                rng.choice((0, 0, 1)),
            )
        )
    links = {
        (left, right): Link(10 ** rng.uniform(7, 10.5), rng.choice((0.0, 1e-3)), is_measured=True)
        for left, right in product(names, names)
        if left != right and rng.random() < 0.7
    }
    return PlanProblem(machines, wanted, links)


def best_of_all(problem: PlanProblem) -> Price:
    """Return the price of the best plan among all combinations of ways to hold each model."""
    search = problem.search()
    options = [pricer.options() for pricer in search._pricers]
    best: Price | None = None
    usable = np.array([machine.usable_bytes for machine in problem.machines])
    last = options[-1]
    memory = np.array([option.memory for option in last])
    for others in product(*options[:-1]):
        left = usable - np.array([option.memory for option in others]).sum(axis=0) if others else usable
        for index in np.flatnonzero((memory <= left).all(axis=1)):
            price = _price([*others, last[index]])
            best = price if best is None or price < best else best
    assert best is not None
    return best


def _price(chosen: list[Option]) -> Price:
    """Return the sums of what options cost alone, their queues taken together on each machine."""
    missing, cost, spares, moved = (sum(part) for part in zip(*(option.price for option in chosen), strict=True))
    for shares in zip(*(option.loads for option in chosen), strict=True):
        cost += queue_cost(sum(shares)) - sum(queue_cost(share) for share in shares)
    return Price(missing, cost, spares, moved)
