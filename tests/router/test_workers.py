"""Two nodes that play any part: no worse than the same two pinned, and their parts follow speeds within a second."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from typing import NamedTuple

import pytest

from baton.capacity.hardware import PRESETS, Hardware
from baton.capacity.snapshot import NodePair
from router.simulated_cluster import Arrival, SimulatedCluster, SimulatedNode

COUNT = 80
PER_SECOND = 6.0
NUM_OUTPUT_TOKENS = 16
COMPUTE = Hardware("compute", 800e12, 2e12)
"""Of this pair prefill belongs on one,"""
MEMORY = Hardware("memory", COMPUTE.flops / 3, 6e12)
"""and decode on the other."""


class _Served(NamedTuple):
    per_second: float
    total_seconds: float


def _trace(count: int, per_second: float, num_prompt_tokens: int, num_output_tokens: int) -> list[Arrival]:
    generator, now, trace = random.Random(5), 0.0, list[Arrival]()
    for _ in range(count):
        now += generator.expovariate(per_second)
        trace.append(Arrival(now, num_prompt_tokens, num_output_tokens))
    return trace


def _serve(roles: tuple[str, str]) -> _Served:
    trace = _trace(COUNT, PER_SECOND, 2000, NUM_OUTPUT_TOKENS)
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


def test_like_machines_use_both_for_both() -> None:
    """Each computes and decodes about half of the requests, in steps as long as predicted."""
    nodes = [SimulatedNode(node_id, "worker", "a100") for node_id in "ab"]
    results = SimulatedCluster(nodes, seed=1).run(_trace(COUNT, 2.0, 2000, 32))
    steps = [each.comparison.ratios["step"] for each in results if each.comparison and "step" in each.comparison.ratios]

    assert all(each.candidate.is_local for each in results)
    assert 0.4 <= sum(each.candidate.decode_node_id == "a" for each in results) / COUNT <= 0.6
    assert statistics.median(steps) <= 1.1


def test_unlike_machines_do_what_they_would_do_pinned() -> None:
    """The one with the most FLOP/s prefills and the one with the most bytes/s decodes, all requests alike."""
    served = []
    for roles in (("worker", "worker"), ("prefill", "decode")):
        nodes = [SimulatedNode("dgx", roles[0], "dgx-spark"), SimulatedNode("mac", roles[1], "m3-ultra")]
        results = SimulatedCluster(nodes, seed=1).run(_trace(20, 0.5, 2000, 32))
        served.append([(each.candidate.prefill_node_id, each.total_seconds) for each in results])

    assert served[0] == served[1]
    assert {prefill for prefill, _ in served[0]} == {"dgx"}


def test_parts_flip_within_a_second_when_speeds_turn_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """What prefilled for the other computes at a sixth, the other reads at a sixth: each takes over the other's part.

    Of the second some 0.3 s pass until the first request that felt it has ended; nothing is loaded, and none is lost.
    """
    hot = replace(COMPUTE, flops=COMPUTE.flops / 6), replace(MEMORY, memory_bytes_per_second=1e12)
    for name, preset in {"compute": COMPUTE, "memory": MEMORY, "hot compute": hot[0], "hot memory": hot[1]}.items():
        monkeypatch.setitem(PRESETS, name, preset)
    nodes = [SimulatedNode("a", "worker", "compute"), SimulatedNode("b", "worker", "memory")]
    cluster, turn = SimulatedCluster(nodes, link_rate=5e10, seed=1), 5.0
    cluster.change_hardware(turn, {"a": "hot compute", "b": "hot memory"})

    results = cluster.run(_trace(200, 20.0, 500, 8))
    parts = [
        (each.arrival.seconds, NodePair(each.candidate.decode_node_id, each.candidate.prefill_node_id))
        for each in results
    ]

    assert len(results) == 200
    assert {pair for seconds, pair in parts if seconds < turn} == {NodePair("b", "a")}
    assert {pair for seconds, pair in parts if seconds > turn + 1} == {NodePair("a", "b")}
