"""Must show 7. `BATON_SOAK_SECONDS=60 python -m pytest tests/system/load/test_soak.py` is the full version."""

from __future__ import annotations

import asyncio
import os

import pytest

from system.cluster import Cluster
from system.load.memory import TOLERATED_BYTES, TOLERATED_SHARE, Resident, grown, read_resident
from system.load.soak import NUM_CLIENTS, Tally, make_asks, read_alone, run_clients

SOAK_SECONDS = float(os.environ.get("BATON_SOAK_SECONDS", "2"))
"""Time under load, after a warm-up of half as long."""
IDLE_SECONDS = 60.0


@pytest.mark.timeout(600 + 4 * SOAK_SECONDS)
def test_many_clients_get_what_each_gets_alone_and_leave_nothing_behind(
    llama_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outputs are equal, memory is flat, every block is free again."""
    alone = asyncio.run(read_alone(llama_cluster, make_asks()))
    warm_up = asyncio.run(run_clients(llama_cluster, alone, SOAK_SECONDS / 2, seed=1))
    llama_cluster.wait_idle(IDLE_SECONDS)
    before = read_resident(llama_cluster)
    tally = asyncio.run(run_clients(llama_cluster, alone, SOAK_SECONDS, seed=2))
    llama_cluster.wait_idle(IDLE_SECONDS)
    after = read_resident(llama_cluster)
    with capsys.disabled():
        print(_report(llama_cluster, tally, before, after))

    assert warm_up.errors + tally.errors == []
    assert warm_up.mismatches + tally.mismatches == []
    assert grown(before, after) == []
    assert asyncio.run(read_alone(llama_cluster, list(alone))) == alone  # and the engines check their pools meanwhile
    llama_cluster.wait_idle(IDLE_SECONDS)
    logs = {name: log.read_text() for name, log in llama_cluster.log_files.items()}
    assert {name: log for name, log in logs.items() if "Traceback" in log} == {}


def _report(cluster: Cluster, tally: Tally, before: Resident, after: Resident) -> str:
    states = cluster.nodes()
    lines = []
    for name in cluster.processes:
        state = states.get(name)
        blocks = f"{state.load.free_block_count} of {state.node.block_count}" if state else "-"
        sizes = (before[name], after[name], after[name] - before[name])
        lines.append(f"{name:<12}" + "".join(f"{size / 2**20:>12.1f} MiB" for size in sizes) + f"   {blocks}")
    return (
        f"\n{NUM_CLIENTS} clients, {SOAK_SECONDS:g} s after a warm-up of {SOAK_SECONDS / 2:g} s: "
        f"{tally.num_requests} requests finished, {tally.num_left} left midway, {tally.num_tokens} tokens, "
        f"{len(tally.mismatches)} mismatches, {len(tally.errors)} errors\n"
        f"{'process':<12}{'RSS before':>16}{'RSS after':>16}{'growth':>16}   free blocks\n"
        + "\n".join(lines)
        + f"\ngrowth tolerated: {TOLERATED_SHARE:.0%} + {TOLERATED_BYTES >> 20} MiB"
    )
