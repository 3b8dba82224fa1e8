"""A real receiver of OTLP holds a request's trace. BATON_PHOENIX: path of `phoenix` (pip install arize-phoenix)."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from baton.demo import checkpoint_dir
from system.cluster import Cluster
from system.plan import HOST, MODEL_NAME, free_ports
from system.rest import ask

_PHOENIX = os.environ.get("BATON_PHOENIX", "")
_WAIT_SECONDS = 400.0
_NUM_PROMPT_TOKENS = 2000
_NUM_LAYERS = 4
_NAMES = {
    *(
        "baton.internal.v1.RouterService/Place",
        "baton.internal.v1.DecodeService/Serve",
        "receive_kv",
        "baton.internal.v1.PrefillService/Prefill",
    ),
    *(f"{verb} layer {layer}" for verb in ("compute", "transfer") for layer in range(_NUM_LAYERS)),
}

pytestmark = pytest.mark.skipif(not _PHOENIX, reason="BATON_PHOENIX is not set")


class Store:
    """A running Phoenix."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(["http", "grpc"])
        self._url = f"http://{HOST}:{ports['http']}"
        self.endpoint = f"http://{HOST}:{ports['grpc']}"
        settings = {
            "PHOENIX_WORKING_DIR": str(folder),
            "PHOENIX_HOST": HOST,
            "PHOENIX_PORT": str(ports["http"]),
            "PHOENIX_GRPC_PORT": str(ports["grpc"]),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }
        self._log = folder / "phoenix.log"
        with self._log.open("wb") as log:
            command = (_PHOENIX, "serve")
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **settings})

    def wait_ready(self) -> None:
        """Return when it answers: spans that are sent before are lost."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                self.spans()
                return
            except OSError:
                assert self.process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.1)

    def spans(self) -> Sequence[Mapping[str, Any]]:
        """Return all spans that it holds."""
        with urllib.request.urlopen(f"{self._url}/v1/projects/default/spans?limit=500", timeout=10) as response:
            found: Sequence[Mapping[str, Any]] = json.load(response)["data"]
            return found

    def wait_for_trace(self, root: str, wanted: Set[str]) -> Sequence[Mapping[str, Any]]:
        """Return the spans of the trace with that root once it has those names; processes send theirs apart."""
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            spans = self.spans()
            roots = {span["context"]["trace_id"] for span in spans if span["name"] == root and not span["parent_id"]}
            trace = [span for span in spans if span["context"]["trace_id"] in roots]
            if wanted <= {span["name"] for span in trace}:
                return trace
            time.sleep(0.2)
        raise AssertionError(f"no trace of {sorted(wanted)}; there are {[span['name'] for span in self.spans()]}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Start one, and wait for it."""
    store = Store(tmp_path)
    try:
        store.wait_ready()
        yield store
    finally:
        store.process.kill()
        store.process.wait()


def test_a_receiver_holds_the_layers_of_a_request_and_they_overlap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From torch to MLX: a layer has arrived before a later one has been computed, in what the receiver shows."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", store.endpoint)
    router = {"prefill_policy": "remote", "default_link_bytes_per_second": "5e6"}  # slow: every layer goes by itself
    with Cluster(checkpoint_dir(), prefill=("torch",), decode=("mlx",), settings={"router": router}) as cluster:
        prompt = [(7 * index + index * index) % 100 + 3 for index in range(_NUM_PROMPT_TOKENS)]
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        assert ask(cluster, "/v1/completions", json.dumps(body).encode()).status == 200
        trace = store.wait_for_trace("POST /v1/completions", _NAMES)

    last_computed = max(_ended(span) for span in trace if span["name"].startswith("compute"))
    arrived = [_ended(span) for span in trace if span["name"].startswith("transfer")]
    assert len(arrived) >= _NUM_LAYERS
    assert sum(each < last_computed for each in arrived) >= len(arrived) / 2


def _ended(span: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(span["end_time"])
