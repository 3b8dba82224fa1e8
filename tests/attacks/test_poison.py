"""Finding 8: a request that ends passes or processes took three nodes with it, and failed whoever was beside it.

Finding 18: logits of a sick node that are NaN failed requests that others could have computed.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attacks.planted_fault.sitecustomize import TRIGGER
from attacks.victims import full
from checkpoints import checkpoint
from system.client import Ask, open_grpc
from system.cluster import Cluster
from system.faults.scenario import FaultFree
from system.plan import MODEL_NAME

_HOOK = Path(__file__).parent / "planted_fault"
NEIGHBOURS = [
    Ask(tuple((7 * index + 5 * place) % 500 + 3 for place in range(40)), 60, 0.0, index) for index in range(6)
]
POISON = [*TRIGGER, 17, 18, 19]
_NUM_AT_ONCE = 12


def _plant(patch: pytest.MonkeyPatch, fault: str) -> None:
    patch.setenv("BATON_PLANTED_FAULT", fault)
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(_HOOK), os.environ.get("PYTHONPATH")])))


@contextmanager
def _cluster(fault: str) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        _plant(patch, fault)
        with Cluster(checkpoint("llama"), prefill=(), decode=("torch",) * 3) as cluster:
            yield cluster


def _send(cluster: Cluster, *tail: int) -> tuple[int, Any]:
    body = {"model": MODEL_NAME, "prompt": [*POISON, *tail], "temperature": 0, "max_tokens": 20}
    with closing(http.client.HTTPConnection(*cluster.http_address, timeout=60)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def _num_dead(cluster: Cluster) -> int:
    return sum(cluster.processes[name].exit_status is not None for name in cluster.node_names)


def test_faults_are_planted_where_passes_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has no place for them: they depend on the names of its functions."""
    _plant(monkeypatch, "kill")
    told = "from baton.engine.execution import pipeline; print(pipeline.launch.__name__)"

    assert subprocess.check_output([sys.executable, "-c", told]) == b"launch_or_fail\n"


@full
@pytest.mark.parametrize(("fault", "num_dead"), [("raise", 0), ("kill", 2), ("kill-late", 2)])
def test_poison_is_refused_after_two_and_no_neighbour_notices(fault: str, num_dead: int) -> None:
    """Every neighbour gets each of its tokens, and those that it would get without the attack."""
    with _cluster(fault) as cluster:
        fault_free = FaultFree()
        expected = [fault_free.outcome(cluster, ask) for ask in NEIGHBOURS]
        streams = [open_grpc(cluster, ask) for ask in NEIGHBOURS]
        for stream in streams:
            stream.wait_for_chunks(1)
        status, body = _send(cluster)

        assert (status, body["error"]["code"]) == (422, "quarantined")
        assert "fingerprint" in body["error"]["message"]
        for stream, whole in zip(streams, expected, strict=True):
            outcome = stream.outcome()
            assert not outcome.error
            assert outcome.token_ids == whole.token_ids
        deadline = time.monotonic() + 10.0
        while _num_dead(cluster) < num_dead and time.monotonic() < deadline:
            time.sleep(0.01)  # the gateway may hear of the end before this process does
        assert _num_dead(cluster) == num_dead
        assert _send(cluster)[0] == 422
        assert _num_dead(cluster) == num_dead


@full
def test_nan_of_one_node_is_computed_on_another() -> None:
    """The client sees the answer; the second look at it comes from a cache that the sick node had no part in.

    So many come at once that the sick node has some, also where its measured rates are the worst of the three.
    """
    with _cluster("spoil@decode-0") as cluster, ThreadPoolExecutor(_NUM_AT_ONCE) as threads:
        for _ in range(2):
            for status, body in threads.map(partial(_send, cluster), range(20, 20 + _NUM_AT_ONCE)):
                assert status == 200
                assert body["baton"]["decode_node"] != "decode-0"
        assert "NON_FINITE_LOGITS" in cluster.log_files["gateway"].read_text()


@full
def test_nan_of_every_node_is_the_request_s_own() -> None:
    """It is computed twice, and refused."""
    with _cluster("spoil") as cluster:
        assert _send(cluster)[0] == 422
        assert _send(cluster)[0] == 422
        assert cluster.log_files["gateway"].read_text().count("attempt_failed") == 2
