"""Dashboards and alerts against a real Prometheus that scrapes a running cluster."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from charts.alerts import ALERTS
from charts.dashboards import DASHBOARDS
from charts.panels import Panel
from charts.render import CHART
from checkpoints import checkpoint
from system.cluster import Cluster
from system.plan import HOST, MODEL_NAME, free_ports
from system.rest import ask
from system.span_receiver import SpanReceiver
from system.telemetry.prometheus import Prometheus

_WAIT_SECONDS = 300.0
_PROCESSES = ("router", "cache-index", "prefill-0", "decode-0")
_CRITICAL = {alert.name for alert in ALERTS if alert.severity == "critical"}
_PANELS = [(board.name, panel) for board in DASHBOARDS for panel in board.panels if not panel.is_of_traces]


class Watched(NamedTuple):
    """A cluster that has served requests, and what has seen it."""

    cluster: Cluster
    prometheus: Prometheus


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Run mock nodes whose prompts are computed remotely, with traces, and have them scraped."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed")
    ports = free_ports(_PROCESSES)
    settings: dict[str, Mapping[str, str]] = {name: {"metrics_port": str(ports[name])} for name in _PROCESSES}
    objectives = {"overload_policy": "shed", "slo_ttft_seconds": "3600"}  # nothing is refused, and margins are told
    settings["router"] = {**settings["router"], **objectives, "prefill_policy": "remote"}
    with pytest.MonkeyPatch.context() as patch, SpanReceiver() as spans:
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://{spans.address}")
        with Cluster(checkpoint("llama"), prefill=("mock",), decode=("mock",), settings=settings) as cluster:
            gateway = f"{HOST}:{cluster.http_address[1]}"
            targets = [gateway, *(f"{HOST}:{port}" for port in ports.values())]
            folder = tmp_path_factory.mktemp("prometheus")
            with Prometheus(binary, folder, targets, CHART / "files" / "alerts.yaml") as prometheus:
                yield Watched(cluster, prometheus)


def _serve(cluster: Cluster, number: int) -> None:
    prompt = [number % 90 + 5] * 40
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    assert ask(cluster, "/v1/completions", json.dumps(body).encode()).status == 200


def _missing(prometheus: Prometheus, panel: Panel) -> list[str]:
    """Return the queries of a panel that have no number."""
    expressions = [
        query.expression.replace("$namespace", ".*").replace("$__rate_interval", "20s") for query in panel.queries
    ]
    return [
        expression
        for expression in expressions
        if not any(math.isfinite(float(series["value"][1])) for series in prometheus.query(expression))
    ]


def test_every_panel_has_data_and_nothing_critical_is_seen(watched: Watched) -> None:
    """While requests are served; but for sensors that the machine does not have."""
    deadline, number, missing = time.monotonic() + _WAIT_SECONDS, 0, {"": [""]}
    while missing and time.monotonic() < deadline:
        for _ in range(5):
            _serve(watched.cluster, number)
            number += 1
        missing = {
            f"{name}: {panel.title}": found
            for name, panel in _PANELS
            if (found := _missing(watched.prometheus, panel)) and not panel.needs_sensors
        }

    assert missing == {}
    while (down := watched.prometheus.down()) and time.monotonic() < deadline:
        time.sleep(0.5)  # a busy machine may take longer for a page than Prometheus waits
    assert down == []
    while not _CRITICAL.isdisjoint(suspected := watched.prometheus.suspected()) and time.monotonic() < deadline:
        time.sleep(0.5)  # the next evaluation clears what was suspected before there was data
    assert _CRITICAL.isdisjoint(suspected)


def test_a_slow_request_leads_to_its_trace(watched: Watched) -> None:
    """The time to first token comes with examples of traces."""
    _serve(watched.cluster, 0)
    deadline, found = time.monotonic() + _WAIT_SECONDS, []
    while not found and time.monotonic() < deadline:
        found = list(watched.prometheus.exemplars("gen_ai_server_time_to_first_token_seconds_bucket"))

    assert found
    assert all(len(exemplar["labels"]["trace_id"]) == 32 for exemplar in found)
