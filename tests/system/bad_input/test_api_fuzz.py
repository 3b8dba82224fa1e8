"""Random requests: bad bodies to every endpoint of the OpenAPI document, and what is odd about a request beside it.

`make matrix` runs thousands of each of the three fuzzers, BATON_FUZZ_REQUESTS any number, and otherwise a sample runs.
BATON_FUZZ_SEED draws others.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import http.client
import json
import os
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode, checks

from baton.demo import checkpoint_dir
from baton.internal.v1.router_service_pb2 import PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from order import RUNS_ALL
from system.bad_input.api_bodies import LENGTH_LIMITS, BodyDrawer
from system.bad_input.api_document import Operation, operations_of, read_document
from system.bad_input.mutation import Mutator
from system.bad_input.wire_requests import WireDrawer, WireRequest
from system.cluster import Cluster
from system.load.memory import grown, read_resident
from system.plan import MODEL_NAME, EngineName
from system.rest import COMPLETION, COMPLETION_PATH, ask, num_active_requests

NUM_REQUESTS = int(os.environ.get("BATON_FUZZ_REQUESTS", "4000" if RUNS_ALL else "120"))
"""Requests of each fuzzer."""
SEED = int(os.environ.get("BATON_FUZZ_SEED", "20260101"))
ENGINE: EngineName = "torch" if RUNS_ALL else "mock"
"""Of both nodes: what requests do to processes is seen with one that starts sooner, too."""
MAX_CONCURRENT_REQUESTS = 4
"""Of the gateway under test: so few that requests which are never given back are soon refused with 429."""
IDLE_SECONDS = 60.0

_DAMAGED_SHARE, _LEFT_SHARE, _ODD_METHOD_SHARE = 0.7, 0.03, 0.03
_BODILESS_WEIGHT = 0.1
_REFUSALS = frozenset({400, 404, 405, 413, 415, 422})
_WIRE_STATUSES = _REFUSALS | {200, 204, 401, 408, 417, 431}
_CHECKS = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
)
"""That whatever fits the schema is accepted is not among them: what one field demands of another no schema can say."""


@pytest.fixture(scope="module")
def fuzzed_cluster() -> Iterator[Cluster]:
    """Run the demo model; at the end everything must be as it was before the first request."""
    limits = {"gateway": {"max_concurrent_requests": str(MAX_CONCURRENT_REQUESTS)}}
    with Cluster(checkpoint_dir(), prefill=(ENGINE,), decode=(ENGINE,), settings=limits) as cluster:
        pids = {name: cluster.pid_of(name) for name in cluster.processes}
        yield cluster
        assert {name: cluster.pid_of(name) for name in cluster.processes} == pids
        _check_nothing_is_left(cluster)
        logs = {name: log.read_text(errors="replace") for name, log in cluster.log_files.items()}
        assert {name: log for name, log in logs.items() if "Traceback" in log} == {}


@pytest.mark.timeout(600 + NUM_REQUESTS / 5)
def test_damaged_bodies_are_answered_as_the_document_says(
    fuzzed_cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """No failure of the server; every answer has a status, a media type and a body that are promised."""
    document = read_document(fuzzed_cluster)
    operations = operations_of(document)
    generator, mutator, statuses = random.Random(SEED), Mutator(SEED), Counter[str]()
    drawer = BodyDrawer(generator, document["components"])
    connection = http.client.HTTPConnection(*fuzzed_cluster.http_address, timeout=60)
    started = time.monotonic()
    weights = [1.0 if operation.body_schema is not None else _BODILESS_WEIGHT for operation in operations]
    for operation in generator.choices(operations, weights, k=NUM_REQUESTS):
        body = _make_body(generator, mutator, drawer, operation)
        if body is not None and generator.random() < _LEFT_SHARE:
            _send_and_leave(fuzzed_cluster, operation, body)
            statuses["left"] += 1
            continue
        method = operation.method if generator.random() > _ODD_METHOD_SHARE else generator.choice(("PUT", "PATCH"))
        path = re.sub(r"\{\w+\}", generator.choice((MODEL_NAME, "x", "%2F%00", "a/b")), operation.path)
        connection.request(method, path, body, {"content-type": "application/json"} if body is not None else {})
        response = connection.getresponse()
        data = response.read()
        media_type = (response.headers["content-type"] or "").partition(";")[0]
        statuses[str(response.status)] += 1

        assert response.status == 200 or response.status in _REFUSALS, (method, path, body, data)
        complaint = operation.complaint(response.status, media_type, data)
        assert not complaint, (method, path, body, data, complaint)
        assert response.status == 200 or json.loads(data)["error"]["message"], (path, body)
    connection.close()
    with capsys.disabled():
        print(
            f"\n{NUM_REQUESTS} requests to {len(operations)} operations, {time.monotonic() - started:.0f} s: {statuses}"
        )
    assert statuses["200"] > NUM_REQUESTS / 20
    assert statuses["400"] > NUM_REQUESTS / 10
    _check_nothing_is_left(fuzzed_cluster)


@pytest.mark.timeout(600 + NUM_REQUESTS / 5)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_schemathesis_finds_nothing(fuzzed_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Bodies that fit the document and bodies that break it in one place, from schemathesis."""
    host, port = fuzzed_cluster.http_address
    schema = schemathesis.openapi.from_url(f"http://{host}:{port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    statuses = Counter[int]()
    started = time.monotonic()
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        modes = (GenerationMode.NEGATIVE, GenerationMode.POSITIVE) if operation.body else (GenerationMode.POSITIVE,)
        for mode in modes:
            _run_operation(operation, mode, -(-NUM_REQUESTS // (2 * len(with_body))), statuses)
    with capsys.disabled():
        total, seconds = sum(statuses.values()), time.monotonic() - started
        print(f"\n{total} requests of schemathesis to {len(operations)} operations, {seconds:.0f} s: {statuses}")

    assert sum(statuses.values()) >= 0.5 * NUM_REQUESTS
    _check_nothing_is_left(fuzzed_cluster)


@pytest.mark.timeout(600 + NUM_REQUESTS / 5)
def test_odd_requests_are_answered_or_refused(fuzzed_cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Headers, encodings, nesting, numbers, clients that go: what is promised is kept, and no memory."""
    operations = {(each.method, each.path): each for each in operations_of(read_document(fuzzed_cluster))}
    drawer, statuses = WireDrawer(SEED), Counter[str]()
    started, before = time.monotonic(), read_resident(fuzzed_cluster)
    for index in range(NUM_REQUESTS):
        if index == NUM_REQUESTS // 4:
            before = read_resident(fuzzed_cluster)  # by then each kind of request has been served
        request = drawer.draw()
        answer = _exchange(fuzzed_cluster, request)
        statuses["left" if answer is None else str(answer.status)] += 1
        if answer is None:
            continue
        shown = (request.data[:600], answer.status, answer.data[:600])
        assert answer.status in _WIRE_STATUSES, shown
        operation = operations.get((request.method, request.path))
        if operation is not None and not answer.is_no_http:
            assert not operation.complaint(answer.status, answer.media_type, answer.data), shown
        elif answer.status >= 400 and request.method != "HEAD":
            assert json.loads(answer.data)["error"]["message"], shown
    with capsys.disabled():
        print(f"\n{NUM_REQUESTS} odd requests, {time.monotonic() - started:.0f} s: {dict(sorted(statuses.items()))}")
    _check_nothing_is_left(fuzzed_cluster)
    front = {"gateway", "router", "cache-index"}
    assert not front & set(grown(before, read_resident(fuzzed_cluster)))
    assert statuses["200"] > NUM_REQUESTS / 20
    assert statuses["400"] > NUM_REQUESTS / 10


class _Answer(NamedTuple):
    status: int
    media_type: str
    data: bytes

    @property
    def is_no_http(self) -> bool:
        """Return whether the request was refused before its path was looked at: whose dialect it is nobody knows."""
        return self.status in (400, 408, 413, 431) and b'"param":null,"code":null' in self.data


def _exchange(cluster: Cluster, request: WireRequest) -> _Answer | None:
    """Send a request on a connection of its own; None where the client goes, or the server has gone while it sent."""
    with socket.create_connection(cluster.http_address, timeout=60) as connection:
        try:
            connection.sendall(request.data)
            if request.is_cut:
                if request.num_answer_bytes:
                    connection.recv(request.num_answer_bytes)
                if request.is_reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return None
            response = http.client.HTTPResponse(connection, method=request.method)
            response.begin()
            media_type, data = (response.headers["content-type"] or "").partition(";")[0], response.read()
            if data and response.headers["content-encoding"] == "gzip":
                data = gzip.decompress(data)
            return _Answer(response.status, media_type, data)
        except (BrokenPipeError, ConnectionResetError):
            return None


def _run_operation(
    operation: schemathesis.APIOperation, mode: GenerationMode, num_requests: int, statuses: Counter[int]
) -> None:
    @seed(SEED)
    @settings(
        max_examples=num_requests,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: schemathesis.Case) -> None:
        _shorten(case)
        response = case.call(timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=list(_CHECKS))

    run()


def _shorten(case: schemathesis.Case) -> None:
    """Ask for the served model and a short answer, without making a sound body bad or a bad one sound."""
    if not isinstance(case.body, dict):
        return
    if isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL_NAME
    for name in LENGTH_LIMITS:
        value = case.body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 16:
            case.body[name] = 16


def _make_body(generator: random.Random, mutator: Mutator, drawer: BodyDrawer, operation: Operation) -> bytes | None:
    schema = operation.body_schema
    if schema is None:
        return None
    body = drawer.body(schema)
    return mutator.body(body) if generator.random() < _DAMAGED_SHARE else json.dumps(body).encode()


def _send_and_leave(cluster: Cluster, operation: Operation, body: bytes) -> None:
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=60)
    connection.request(operation.method, operation.path, body, {"content-type": "application/json"})
    connection.close()


def _check_nothing_is_left(cluster: Cluster) -> None:
    """All nodes are idle, all blocks free, the router expects no work, the gateway takes as many requests as ever."""
    cluster.wait_idle(IDLE_SECONDS)
    cluster.wait_until(lambda: num_active_requests(cluster) == 1, "only the question itself is in work", IDLE_SECONDS)
    cluster.wait_until(lambda: _expected_queue_seconds(cluster) == 0.0, "the router expects no queue", IDLE_SECONDS)
    body = json.dumps({**COMPLETION, "max_tokens": 40, "ignore_eos": True}).encode()
    with concurrent.futures.ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as threads:
        asked = [threads.submit(ask, cluster, COMPLETION_PATH, body) for _ in range(MAX_CONCURRENT_REQUESTS)]
        assert [future.result().status for future in asked] == [200] * MAX_CONCURRENT_REQUESTS


def _expected_queue_seconds(cluster: Cluster) -> float:
    """Return the longest wait of any placement that the router would consider now."""
    request = PlaceRequest(
        request_id="fuzz-rest", model_id=MODEL_NAME, prompt_token_count=16, max_token_count=1, is_dry_run=True
    )
    with grpc.insecure_channel(cluster.address_of("router")) as channel:
        answer = RouterServiceStub(channel).Place(request, timeout=10)  # type: ignore[no-untyped-call]
    return max(candidate.estimate.queue_seconds for candidate in answer.candidates)
