"""Two nodes that can do both serve no worse than the same two, each with one part or each for itself."""

from __future__ import annotations

import random
from typing import NamedTuple

from router.simulated_cluster import Arrival, SimulatedCluster, SimulatedNode

COUNT = 80
PER_SECOND = 6.0
NUM_OUTPUT_TOKENS = 16


class _Served(NamedTuple):
    per_second: float
    total_seconds: float


def _serve(roles: tuple[str, str]) -> _Served:
    generator, now, trace = random.Random(5), 0.0, []
    for _ in range(COUNT):
        now += generator.expovariate(PER_SECOND)
        trace.append(Arrival(now, 2000, NUM_OUTPUT_TOKENS))
    nodes = [SimulatedNode("a", roles[0], "a100"), SimulatedNode("m", roles[1], "m3-ultra")]
    results = SimulatedCluster(nodes, seed=1).run(trace)
    ends = sorted(result.arrival.seconds + result.total_seconds for result in results)
    return _Served((COUNT - 1) / (ends[-1] - ends[0]), sum(result.total_seconds for result in results) / COUNT)


def test_workers_serve_as_well_as_the_better_of_aggregated_and_disaggregated() -> None:
    """In throughput and in mean time, where one of the nodes is almost full of prompts."""
    workers = _serve(("worker", "worker"))
    others = [_serve(roles) for roles in (("decode", "decode"), ("prefill", "decode"))]

    assert workers.per_second >= 0.97 * max(other.per_second for other in others)
    assert workers.total_seconds <= min(other.total_seconds for other in others) / 0.97
