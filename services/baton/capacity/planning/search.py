"""The best plan of which machine holds which model. Pure.

Up to `EXACT_MACHINES` machines the best one is found for certain, by branch and bound; beyond, by steps and swaps from
several beginnings, the best single machines and replicas among them, so that it is never worse than those.

Source: docs/planner.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from baton.capacity.planning.pricing import UNIT, Machine, Option, Price, Pricer, WantedModel, queue_cost
from baton.capacity.snapshot import Link

EXACT_MACHINES = 6
"""So many machines at most are searched exhaustively."""

_USUAL_TOKENS = 32_768
"""Of a pool, for a prefix cache of several conversations."""

Holders = Mapping[str, frozenset[str]]
"""The machines that hold each model."""


@dataclass(frozen=True)
class ModelPlan:
    """What each machine should hold."""

    machines: tuple[Machine, ...]
    wanted: tuple[WantedModel, ...]
    options: tuple[Option, ...]
    price: Price
    bound: int
    """No plan that serves all can cost less, whatever memory there were; in billionths of a request."""

    @property
    def holders(self) -> Holders:
        """Return the machines that hold each model."""
        return {
            wanted.name: frozenset(
                machine.machine_id for index, machine in enumerate(self.machines) if option.mask >> index & 1
            )
            for wanted, option in zip(self.wanted, self.options, strict=True)
        }

    def option(self, name: str) -> Option:
        """Return how a model is held."""
        return next(way for wanted, way in zip(self.wanted, self.options, strict=True) if wanted.name == name)

    def kv_bytes(self, name: str, machine_id: str) -> int:
        """Return the memory for K and V of a model that a holder needs for the expected load."""
        wanted = next(each for each in self.wanted if each.name == name)
        return max(0, self.option(name).memory[self._index(machine_id)] - wanted.fixed_bytes)

    def pool_bytes(self, name: str, machine_id: str) -> int:
        """Return the memory for K and V that a holder is given: more than it needs, where there is room for others."""
        index, shape = self._index(machine_id), next(each.shape for each in self.wanted if each.name == name)
        needed = self.kv_bytes(name, machine_id)
        left = self.machines[index].usable_bytes - sum(option.memory[index] for option in self.options)
        useful = max(3 * needed, max(shape.max_context_tokens, _USUAL_TOKENS) * shape.kv_bytes_per_token)
        return needed + min(useful, max(0, left) // 4)

    def _index(self, machine_id: str) -> int:
        return next(index for index, each in enumerate(self.machines) if each.machine_id == machine_id)

    def part(self, name: str, machine_id: str) -> str:
        """Return what a holder will probably do for a model: prefill, decode, both, or wait as a spare."""
        routed = [candidate for candidate, _ in self.option(name).routed]
        decodes = any(each.decode_node_id == machine_id for each in routed)
        prefills = any((each.prefill_node_id or each.decode_node_id) == machine_id for each in routed)
        return "both" if decodes and prefills else "decode" if decodes else "prefill" if prefills else "spare"


class PlanSearch:
    """Prices and compares plans for some machines and models.

    Of links where only the other direction is known, that counts.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        wanted: Sequence[WantedModel],
        links: Mapping[tuple[str, str], Link],
        default_link: Link,
    ) -> None:
        self._machines, self._wanted = tuple(machines), tuple(wanted)
        known = {(left, right): link for (right, left), link in links.items()} | dict(links)
        self._pricers = [Pricer(self._machines, each, wanted, known, default_link) for each in wanted]

    def best(self) -> ModelPlan:
        """Return the best plan."""
        return self._plan(self._exact() if len(self._machines) <= EXACT_MACHINES else self._improved())

    def plan_of(self, holders: Holders) -> ModelPlan | None:
        """Return the best plan with given holders; None: they do not fit, or are not allowed."""
        chosen: list[Option] = []
        for pricer in self._pricers:
            names = holders.get(pricer.wanted.name, frozenset())
            mask = sum(1 << index for index, each in enumerate(self._machines) if each.machine_id in names)
            if not pricer.allows(mask) or not pricer.ways(mask):
                return None
            chosen.append(_cheapest(pricer.ways(mask)))
        return self._plan(chosen) if self._fits(chosen) else None

    def price(self, chosen: Sequence[Option]) -> Price:
        """Return the price of options together: what each costs alone, and that they wait for each other."""
        total = _sum([option.price for option in chosen])
        beside = 0
        for shares in zip(*(option.loads for option in chosen), strict=True):
            if sum(share > 0 for share in shares) > 1:
                beside += queue_cost(sum(shares)) - sum(map(queue_cost, shares))
        return total._replace(cost=total.cost + beside)

    def _plan(self, chosen: Sequence[Option]) -> ModelPlan:
        least = [pricer.least_seconds * pricer.wanted.demand.requests_per_second for pricer in self._pricers]
        bound = sum(math.floor(each / UNIT) for each in least)
        return ModelPlan(self._machines, self._wanted, tuple(chosen), self.price(chosen), bound)

    def _fits(self, chosen: Sequence[Option]) -> bool:
        used = zip(*(option.memory for option in chosen), strict=True)
        return all(sum(taken) <= each.usable_bytes for taken, each in zip(used, self._machines, strict=False))

    def _exact(self) -> Sequence[Option]:
        """Return the best of all combinations."""
        options = [pricer.options() for pricer in self._pricers]
        parts = [zip(*(option.price for option in each), strict=True) for each in options]
        least = [Price(*map(min, each)) for each in parts]  # of each part, whichever option has it
        rests = [_sum(least[index:]) for index in range(len(options) + 1)]
        best: list[tuple[Price, tuple[int, ...], Sequence[Option]]] = []

        def descend(chosen: tuple[Option, ...]) -> None:
            if len(chosen) == len(options):
                found = (self.price(chosen), _masks(chosen), chosen)
                if not best or found[:2] < best[0][:2]:
                    best[:] = [found]
                return
            others = _sum([*(option.price for option in chosen), rests[len(chosen) + 1]])
            for option in options[len(chosen)]:
                if best and _sum([others, option.price]) > best[0][0]:
                    return  # and so are all that follow: together models cost no less than alone
                if self._fits((*chosen, option)):
                    descend((*chosen, option))

        descend(())
        return best[0][2]  # to hold nothing always fits

    def _improved(self) -> Sequence[Option]:
        """Return the best that steps and swaps lead to."""
        held = {
            each.name: frozenset(machine.machine_id for machine in self._machines if each.name in machine.held)
            for each in self._wanted
        }
        as_is = self.plan_of(held)
        found = [self._added(is_single=True), self._added(is_single=False), *([as_is.options] if as_is else [])]
        beginnings = [min(found, key=self.price), *([as_is.options] if as_is else [])]
        return min([*found, *map(self._climbed, beginnings)], key=lambda chosen: (self.price(chosen), _masks(chosen)))

    def _added(self, *, is_single: bool) -> Sequence[Option]:
        """Return options made by giving models machine after machine that serves them alone: one each, or all."""
        chosen = [pricer.ways(0)[0] for pricer in self._pricers]
        for index, pricer in enumerate(self._pricers):
            for candidate in pricer.candidates:
                mask = chosen[index].mask | 1 << pricer.index_of(candidate.decode_node_id)
                if not candidate.is_local or not pricer.allows(mask) or not pricer.ways(mask):
                    continue
                changed = [*chosen[:index], _cheapest(pricer.ways(mask)), *chosen[index + 1 :]]
                if self._fits(changed) and not (is_single and chosen[index].mask):
                    chosen = changed
        return chosen

    def _climbed(self, chosen: Sequence[Option]) -> Sequence[Option]:
        """Return what the best step after the best step leads to, until none is better."""
        price = self.price(chosen)
        while True:
            steps = ((self.price(step), _masks(step), step) for step in self._steps(chosen))
            better = [step for step in steps if step[0] < price and self._fits(step[2])]
            if not better:
                return chosen
            price, _, chosen = min(better, key=lambda found: found[:2])

    def _steps(self, chosen: Sequence[Option]) -> Iterator[Sequence[Option]]:
        """Yield what one model gives, takes or exchanges, and what one leaves to another."""
        bits = [1 << index for index in range(len(self._machines))]
        for index, pricer in enumerate(self._pricers):
            mask = chosen[index].mask
            flips = {mask, *(mask ^ bit for bit in bits)}
            swaps = {mask ^ bit ^ other for bit in bits if mask & bit for other in bits if not mask & other}
            for way in (way for each in sorted(flips | swaps) if pricer.allows(each) for way in pricer.ways(each)):
                yield [*chosen[:index], way, *chosen[index + 1 :]]
            for other, taker in enumerate(self._pricers):
                for bit in (bit for bit in bits if mask & bit and not chosen[other].mask & bit):
                    left, taken = mask ^ bit, chosen[other].mask | bit
                    if taker.allows(taken) and pricer.ways(left):
                        for way in taker.ways(taken):
                            step = list(chosen)
                            step[index], step[other] = _cheapest(pricer.ways(left)), way
                            yield step


def _cheapest(ways: Sequence[Option]) -> Option:
    return min(ways, key=lambda way: way.price)


def _masks(chosen: Sequence[Option]) -> tuple[int, ...]:
    return tuple(option.mask for option in chosen)


def _sum(prices: Sequence[Price]) -> Price:
    return Price(*(sum(part) for part in zip(*prices, strict=True))) if prices else Price(0, 0, 0, 0)
