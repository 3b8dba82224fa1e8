"""Weights leave a machine that decodes: its answers are hardly slower. `make matrix` keeps bench/results/weights.json.

Alone: `BATON_MATRIX=1 python -m pytest -n0 tests/system/load/test_weights_beside_requests.py`.

Eight streams of 96 tokens, steps of 20 ms (mock), in rounds with and without a machine that takes 100 MB/s, in turns.
TPOT is (last token - first token) / (tokens - 1) of a request; the gap is between two of its tokens. The taker hashes
and writes on the same processors, which it would do on its own machine, and so has the lowest priority here.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from baton.weights.manifest import FileDigest, digest_of_file, make_manifest
from baton.weights.store import WeightStore
from bench.results_file import describe_machine, write_results
from checkpoints import checkpoint
from system.cluster import Cluster
from system.plan import MODEL_NAME

pytestmark = [
    pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="takes a minute: run `make matrix`"),
    pytest.mark.timeout(900),
]
NUM_STREAMS, NUM_TOKENS, NUM_ROUNDS = 8, 96, 6
FILE_BYTES, NUM_FILES = 1 << 28, 8
MOST_RATIO = 1.2
RESULTS = Path(__file__).parents[3] / "bench/results/weights.json"


def times_of_tokens(address: tuple[str, int]) -> Sequence[float]:
    """Return when each token of an answer came."""
    connection = http.client.HTTPConnection(*address, timeout=120)
    body = {"model": MODEL_NAME, "prompt": "one two", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    times = [time.perf_counter() for line in answer if line.startswith(b"data: {")]
    connection.close()
    return times


def percentile_99(values: Sequence[float]) -> float:
    """Return it."""
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


def test_a_transfer_costs_answers_a_fifth_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The p99 of TPOT beside a transfer is at most 1.2 times that without."""
    giving = WeightStore(tmp_path / "giving")
    monkeypatch.setenv("BATON_WEIGHTS_DIR", str(giving.folder))
    elsewhere = {}
    for index in range(NUM_FILES):
        path = tmp_path / f"{index}.safetensors"
        path.write_bytes(os.urandom(1 << 20) * (FILE_BYTES >> 20))
        elsewhere[digest_of_file(path)] = path
    files = [FileDigest(path.name, FILE_BYTES, digest) for digest, path in elsewhere.items()]
    giving.begin(make_manifest("org/large", "0" * 40, files), elsewhere)
    tpots: dict[str, list[float]] = {"alone": [], "beside": []}
    gaps: dict[str, list[float]] = {"alone": [], "beside": []}
    taken: list[tuple[int, float]] = []
    settings = {"worker": {"mock_step_seconds": "0.02"}}
    with Cluster(checkpoint("llama"), prefill=(), decode=(), worker=("mock",), settings=settings) as cluster:
        command = ["nice", "-n", "19", sys.executable, "-m", "baton.cli", "models", "pull", "org/large", "--from"]
        environment = {**os.environ, "BATON_WEIGHTS_DIR": str(tmp_path / "taking")}
        taking = WeightStore(tmp_path / "taking")

        def num_taken() -> int:
            return sum(taking.held_bytes(file) for file in files)

        with ThreadPoolExecutor(NUM_STREAMS) as threads:
            for _ in range(NUM_ROUNDS):
                for kind in ("alone", "beside"):
                    taker = None
                    if kind == "beside":
                        taker = subprocess.Popen([*command, cluster.address_of("worker-0")], env=environment)
                        begun_with = num_taken()
                        cluster.wait_until(lambda begun=begun_with: num_taken() > begun, "bytes arrive")
                    begin, num_before = time.perf_counter(), num_taken()
                    all_times = list(threads.map(times_of_tokens, [cluster.http_address] * NUM_STREAMS))
                    for times in all_times:
                        tpots[kind].append((times[-1] - times[0]) / (len(times) - 1))
                        gaps[kind] += [after - before for before, after in itertools.pairwise(times)]
                    if taker is not None:
                        taken.append((num_taken() - num_before, time.perf_counter() - begin))
                        taker.kill()  # the next one goes on where it was
                        taker.wait()

    rate = sum(num for num, _ in taken) / sum(seconds for _, seconds in taken)
    ratio = percentile_99(tpots["beside"]) / percentile_99(tpots["alone"])
    told = {
        "machine": describe_machine(),
        "tpot_seconds": tpots,
        "tpot_p99_seconds": {kind: percentile_99(values) for kind, values in tpots.items()},
        "tpot_p99_ratio": ratio,
        "gap_p99_seconds": {kind: percentile_99(values) for kind, values in gaps.items()},
        "transfer_bytes_per_second": rate,
        "streams": NUM_STREAMS,
        "tokens": NUM_TOKENS,
        "step_seconds": 0.02,
    }
    write_results(RESULTS, told)
    print({key: value for key, value in told.items() if key != "tpot_seconds"})
    assert rate > 50e6
    assert ratio <= MOST_RATIO
