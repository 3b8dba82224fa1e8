"""What a plan is, and what a change of models would come to before anybody agrees to it, in lines for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from baton.capacity.placement_table import format_seconds
from baton.capacity.planning.search import Holders, ModelPlan
from baton.config.memory_budget import told

_READY_BYTES_PER_SECOND = 3e8
_READY_SECONDS = 3.0
"""Of the start of a worker, beside its weights."""


def ready_seconds(num_bytes: int) -> float:
    """Return after what time a worker probably serves that has so many bytes to load."""
    return _READY_SECONDS + num_bytes / _READY_BYTES_PER_SECOND


def why_nowhere(pinned: Collection[str], machines: Collection[str]) -> str:
    """Return why none of some machines holds a model: those that it is pinned to are away, or none has room."""
    if not pinned or set(pinned) & set(machines):
        return "no machine has room for it"
    return f"none of the machines that it is pinned to is there: {', '.join(sorted(pinned))}"


def plan_lines(plan: ModelPlan | None, why: str) -> list[str]:
    """Return what was decided last, who holds what by the plan, and what it costs."""
    if plan is None:
        return [why]
    ids, held = [each.machine_id for each in plan.machines], []
    for each in plan.wanted:
        where = _holders(plan, each.name) or f"nowhere: {why_nowhere(each.pinned, ids)}"
        held.append(f"{each.name}: {where}; {told(each.weight_bytes)} each")
    requests, bound = plan.price.cost * 1e-9, plan.bound * 1e-9
    return [why, *held, f"{requests:.3g} requests run or wait on average, {bound:.3g} at least, whatever the plan"]


def load_forecast(name: str, usable: Mapping[str, int], plan: ModelPlan | None, today: Holders) -> Iterator[str]:
    """Yield where a model would go, what it would take there, and what else would change.

    `usable` has the bytes for models by machine, 1 or more; `plan` is the best one with it, None: nobody knows its
    size; `today` has the machines that hold each model.
    """
    most = max(sorted(usable), key=usable.__getitem__)
    room = f"{most} has most room, {told(usable[most])}"
    if plan is None:
        yield f"the size of {name} is known once one machine has its files: {room}, and would get them first"
        return
    wanted, option = next(each for each in zip(plan.wanted, plan.options, strict=True) if each[0].name == name)
    size = f"{told(wanted.weight_bytes)} of weights, {told(wanted.fixed_bytes - wanted.weight_bytes)} of workspace"
    if not plan.holders[name]:
        yield f"{name}: {why_nowhere(wanted.pinned, usable)}: {size}, and K and V of a request; {room}"
        return
    taken = zip(plan.machines, option.memory, strict=True)
    parts = [
        f"{told(num_bytes)} of {told(each.usable_bytes)} on {each.machine_id}" for each, num_bytes in taken if num_bytes
    ]
    yield f"{name} would be served by {_holders(plan, name)}: {size}; with K and V it takes {', '.join(parts)}"
    yield f"it would serve after about {ready_seconds(wanted.weight_bytes):.0f} s, files that have to come not counted"
    if option.routed and (cost := option.routed[0][0].estimate):
        asked = f"{wanted.demand.num_prompt_tokens} prompt tokens and {wanted.demand.num_output_tokens} new ones"
        first, total = format_seconds(cost.time_to_first_token_seconds), format_seconds(cost.total_seconds)
        yield f"a request of {asked} would take {total} there, its first token {first}"
    for other, holders in sorted(plan.holders.items()):
        if left := today.get(other, frozenset()) - holders:
            yield f"{other} would leave {', '.join(sorted(left))}"


def _holders(plan: ModelPlan, name: str) -> str:
    return ", ".join(f"{machine} ({plan.part(name, machine)})" for machine in sorted(plan.holders[name]))
