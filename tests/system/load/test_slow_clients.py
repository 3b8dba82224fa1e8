"""Must show 6: idle slow clients do not slow those that generate.

`BATON_SLOW_CLIENTS=1000 BATON_SLOW_ROUNDS=5 python -m pytest tests/system/load/test_slow_clients.py` is the full
version, beside 32 active clients; without the variables a sample runs.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
from collections.abc import Iterator, Sequence

import pytest

from baton.demo import checkpoint_dir
from system.cluster import Cluster
from system.load.slow_clients import NUM_TOKENS, Latencies, SlowClients, generate_together
from system.rest import num_active_requests

NUM_SLOW = int(os.environ.get("BATON_SLOW_CLIENTS", "120"))
NUM_ROUNDS = int(os.environ.get("BATON_SLOW_ROUNDS", "6"))
"""Pairs of a measurement without slow clients and one with them; of a sample, at most."""
IS_FULL = NUM_SLOW >= 1000
NUM_ACTIVE = 32 if IS_FULL else 8
NUM_REQUESTS = 3 if IS_FULL else 1
"""Of each active client in each measurement."""
MAX_RATIO = 1.25 if IS_FULL else 1.5
"""Of medians with and without."""


@pytest.fixture(scope="module")
def patient_cluster() -> Iterator[Cluster]:
    """Run a mock of an 8B model on a Mac, whose pace does not depend on this machine; no slow client is cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    node = {"mock_shape": "llama-3.1-8b", "mock_hardware": "m3-ultra", "num_blocks": "4096"}
    patience = {"header_timeout_seconds": "600", "body_timeout_seconds": "600", "keep_alive_timeout_seconds": "600"}
    with Cluster(
        checkpoint_dir(), prefill=(), decode=("mock",), settings={"gateway": patience, "decode": node}
    ) as cluster:
        yield cluster
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(600 + 60 * NUM_ROUNDS)
def test_idle_slow_clients_do_not_slow_active_ones(
    patient_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Latencies with and without them, by turns in one run, have nearly the same median; nobody is turned away.

    What others do on the machine may slow some rounds of a small sample, slow clients would slow all: one round of a
    sample must show that they do not. The full version takes the median of its rounds.
    """
    address = patient_cluster.http_address
    without, with_slow = [], []
    asyncio.run(generate_together(address, NUM_ACTIVE, 1))
    for _ in range(NUM_ROUNDS):
        without.append(asyncio.run(generate_together(address, NUM_ACTIVE, NUM_REQUESTS)))
        with SlowClients(address, NUM_SLOW) as slow:
            _wait_until_all_is_generated(patient_cluster)
            with_slow.append(asyncio.run(generate_together(address, NUM_ACTIVE, NUM_REQUESTS)))
            assert slow.num_lost == 0
        _wait_until_all_is_generated(patient_cluster)
        if not IS_FULL and _ratios(without, with_slow)[-1] < MAX_RATIO:
            break
    with capsys.disabled():
        print(_report(without, with_slow))

    ratios = _ratios(without, with_slow)
    assert (statistics.median(ratios) if IS_FULL else min(ratios)) < MAX_RATIO
    assert "Traceback" not in patient_cluster.log_files["gateway"].read_text()


def _wait_until_all_is_generated(cluster: Cluster) -> None:
    """Wait until the answers that nobody reads are complete: what is measured is idle clients, not a busy engine."""
    cluster.wait_until(lambda: num_active_requests(cluster) == 1, "only the question itself is in work")
    cluster.wait_idle()


def _ratios(without: Sequence[Latencies], with_slow: Sequence[Latencies]) -> list[float]:
    """Return the median latency with over that without, of each round."""
    pairs = zip(without, with_slow, strict=True)
    return [statistics.median(after.whole) / statistics.median(before.whole) for before, after in pairs]


def _report(without: Sequence[Latencies], with_slow: Sequence[Latencies]) -> str:
    ratio = statistics.median(_ratios(without, with_slow))
    clients = f"{NUM_ACTIVE} clients, {NUM_TOKENS} tokens each, beside {NUM_SLOW} slow ones"
    lines = [f"\n{clients}: ratio of medians {ratio:.3f} over {len(without)} rounds"]
    for name, rounds in (("without", without), ("with", with_slow)):
        for kind in ("first_token", "whole"):
            values = sorted(1000 * value for latencies in rounds for value in getattr(latencies, kind))
            tail = values[min(len(values) - 1, round(0.99 * (len(values) - 1)))]
            lines.append(f"{name:>8} {kind:>12}: p50 {statistics.median(values):8.1f} ms  p99 {tail:8.1f} ms")
    return "\n".join(lines)
