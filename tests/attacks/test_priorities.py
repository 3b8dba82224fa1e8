"""Finding 12: any client may say `priority: -100`, which is 500 seconds ahead of everybody else."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from attacks.victims import full
from baton.v1.generation_pb2 import SamplingParameters
from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from checkpoints import checkpoint
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.http.raw_client import completion, exchange, post, status_of
from system.cluster import Cluster
from system.plan import MODEL_NAME
from text.tokenizer_folders import byte_level, save

ASKED = [-100, -1, 5]


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Run an event loop in a thread."""
    loop = Loop()
    yield loop
    loop.close()


def test_only_administrators_go_ahead_of_others(loop: Loop, tmp_path: Path) -> None:
    """By every API; who waits longer than he must may."""
    keys = tmp_path / "keys"
    keys.write_text("bob:b-key\noperator:o-key admin\n")
    cluster = FakeCluster(save(byte_level(), tmp_path))
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with (
        loop.running(cluster, api_keys_file=keys, key_earliest_priority=-1) as gateway,
        grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel,
    ):
        generate = GenerationServiceStub(channel).Generate  # type: ignore[no-untyped-call]
        for key in ("b-key", "o-key"):
            for priority in ASKED:
                bodies = {
                    "/v1/completions": completion(priority=priority),
                    "/v1/chat/completions": json.dumps({**chat, "priority": priority}).encode(),
                }
                for path, body in bodies.items():
                    request = post(path, body, f"authorization: Bearer {key}", "connection: close")
                    assert status_of(exchange(gateway, request)) in (200, 400)
                sampling = SamplingParameters(max_token_count=1)
                asked = GenerateRequest(model=MODEL, text="hi", priority=priority, sampling=sampling)
                assert list(generate(asked, metadata=[("authorization", f"Bearer {key}")], timeout=60))
        taken = [request.priority for node in cluster.decodes for request in node.requests]

    num_apis = len(taken) // (2 * len(ASKED))
    assert num_apis >= 2
    assert taken == [max(-1, each) for each in ASKED for _ in range(num_apis)] + [
        each for each in ASKED for _ in range(num_apis)
    ]


@full
def test_nobody_jumps_the_queue(tmp_path: Path) -> None:
    """Of a node that is busy: who says `priority: -100` is served after those who came before."""
    keys = tmp_path / "keys"
    keys.write_text("bob:b-key\n")
    settings = {"gateway": {"api_keys_file": str(keys)}, "decode": {"max_batch_size": "1", "mock_step_seconds": "0.05"}}
    ended: list[int] = []
    with Cluster(checkpoint("llama"), prefill=(), decode=("mock",), settings=settings) as cluster:

        def ask(priority: int) -> None:
            body = {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": 16, "priority": priority}
            headers = {"authorization": "Bearer b-key", "content-type": "application/json"}
            connection = http.client.HTTPConnection(*cluster.http_address, timeout=60)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", json.dumps(body), headers)
                assert connection.getresponse().read()
            ended.append(priority)

        with ThreadPoolExecutor(5) as threads:
            for count in range(1, 5):
                threads.submit(ask, 0)
                cluster.wait_until(lambda count=count: num_requests(cluster) == count, "it is in the queue")  # type: ignore[misc]
            threads.submit(ask, -100)
    print(f"priorities in the order of their ends: {ended}")

    assert ended == [0, 0, 0, 0, -100]


def num_requests(cluster: Cluster) -> int:
    """Return how many requests the node has."""
    load = cluster.node("decode-0").load
    return load.running_request_count + load.waiting_request_count


def test_many_choices_of_one_request_are_not_one_request(loop: Loop, tmp_path: Path) -> None:
    """Where a key may have 4 in work and make 100 a minute, it has no 128 for the price of one."""
    keys = tmp_path / "keys"
    keys.write_text("bob:b-key\n")
    cluster = FakeCluster(save(byte_level(), tmp_path))
    limits = {"key_max_concurrent_requests": 4, "key_requests_per_minute": 5}
    with loop.running(cluster, api_keys_file=keys, **limits) as gateway:
        found = [
            status_of(
                exchange(
                    gateway,
                    post("/v1/completions", completion(n=n), "authorization: Bearer b-key", "connection: close"),
                )
            )
            for n in (128, 4, 1)
        ]

    assert found == [400, 200, 429]
    assert sum(len(node.requests) for node in cluster.decodes) == 4
