"""Finding 15: every API key was an operator's, and a key that was taken away went on.

Bob read what others asked in /ui/state and /metrics, lifted their pins, and learnt from errors where processes are.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attacks.http.door import SECONDS, HttpDoor, open_gateway
from attacks.victims import IS_FORMER, full
from checkpoints import checkpoint
from system.cluster import Cluster
from system.plan import HOST, MODEL_NAME

REVOKED_SECONDS = 5.0
ADMIN = "ops:ops-key" if IS_FORMER else "ops:ops-key admin"
KEYS = f"bob:bobs-key\n{ADMIN}\n"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return the gateway's file of keys."""
    file = tmp_path / "all-keys"
    file.write_text(KEYS)
    return file


@pytest.fixture
def door(model_dir: Path, tmp_path: Path, keys: Path) -> Iterator[HttpDoor]:
    """Run a gateway whose router is away."""
    with open_gateway(model_dir, tmp_path, api_keys_file=str(keys)) as running:
        yield running


def ask(door: HttpDoor, key: str, path: str, *, method: str = "GET", body: object = None) -> tuple[int, str]:
    """Return status and text of an answer."""
    connection = http.client.HTTPConnection(HOST, door.port, timeout=SECONDS)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@full
@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/metrics"), ("GET", "/ui/state"), ("GET", "/state"), ("DELETE", "/instance/1"), ("GET", "/models")),
        *(("POST", "/v1/models/load"), ("POST", "/v1/models/unload")),
    ],
)
def test_a_clients_key_is_no_operators(door: HttpDoor, method: str, path: str) -> None:
    """It may ask the model, and nothing about the cluster."""
    assert ask(door, "bobs-key", path, method=method)[0] == 403
    assert ask(door, "ops-key", path, method=method)[0] != 403


@full
def test_a_key_that_is_taken_away_ends_with_what_runs_under_it(keys: Path) -> None:
    """Within five seconds, in the middle of a stream."""
    settings = {"gateway": {"api_keys_file": str(keys)}, "decode": {"mock_step_seconds": "0.2"}}
    body = {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": 100, "stream": True}
    headers = {"authorization": "Bearer bobs-key", "content-type": "application/json"}
    with Cluster(checkpoint("llama"), prefill=(), decode=("mock",), settings=settings) as cluster:
        connection = http.client.HTTPConnection(*cluster.http_address, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            stream = connection.getresponse()
            assert stream.readline().startswith(b"data: ")
            began = time.monotonic()
            keys.write_text(f"{ADMIN}\n")
            last = json.loads(stream.read().split(b"data: ")[-1])
            seconds = time.monotonic() - began

    assert last["error"]["code"] == "invalid_api_key"
    assert seconds < REVOKED_SECONDS


@full
def test_errors_do_not_say_where_processes_are(model_dir: Path, tmp_path: Path) -> None:
    """Neither to clients, nor to whoever asks if it is ready."""
    with open_gateway(model_dir, tmp_path, has_keys=False, router_timeout_seconds="0.2") as door:
        port = door.process.settings["router_address"].rpartition(":")[2]
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        answers = [ask(door, "", "/v1/chat/completions", method="POST", body=body), ask(door, "", "/ready")]

    for status, text in answers:
        assert (status, port in text) == (503, False), text
