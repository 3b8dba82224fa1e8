"""Dashboards and alerts: they ask for what is exported, and arrive in the cluster as they are written."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton.telemetry import names
from baton.telemetry.prometheus import family_name
from charts.alerts import ALERTS
from charts.dashboards import DASHBOARDS
from charts.render import CHART, manifests_of, render
from tests.charts.rendering import EVERYTHING, MINIMAL, manifests

_METRIC = re.compile(r"\b((?:baton|gen_ai)_[a-z_]+)[{\[]")
_KINDS = ("", "_total", "_bucket", "_sum", "_count")


def _expressions() -> Iterator[tuple[str, str]]:
    for board in DASHBOARDS:
        for panel in board.panels:
            if not panel.is_of_traces:
                yield from ((f"{board.name}: {panel.title}", query.expression) for query in panel.queries)
    yield from ((alert.name, alert.expression) for alert in ALERTS)


def test_every_query_names_metrics_that_are_exported() -> None:
    """Also those that are written out: a metric that is renamed takes its panels along or fails here."""
    metrics = [metric for metric in vars(names).values() if isinstance(metric, names.MetricName)]
    exported = {family_name(metric.name, metric.unit) + kind for metric in metrics for kind in _KINDS}
    exported |= {family_name(metric.name, metric.unit, is_gauge=True) for metric in metrics}
    asked = {where: set(_METRIC.findall(expression)) for where, expression in _expressions()}

    assert [where for where, found in asked.items() if not found] == []
    assert {where: found - exported for where, found in asked.items() if found - exported} == {}


def test_every_metric_is_looked_at() -> None:
    """One that no panel and no alert shows is one that nobody will see."""
    everything = "".join(expression for _, expression in _expressions())
    metrics = [metric for metric in vars(names).values() if isinstance(metric, names.MetricName)]

    assert [metric.name for metric in metrics if family_name(metric.name, metric.unit) not in everything] == []


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.name)
def test_a_dashboard_arrives_whole(board: object) -> None:
    """As Grafana's sidecar finds it: one file in a ConfigMap with its label, panels side by side and not on top."""
    name = board.name  # type: ignore[attr-defined]
    found = [each for each in manifests("everything") if each["metadata"]["name"] == f"baton-dashboard-{name}"]
    (config_map,) = found
    (text,) = config_map["data"].values()
    document = json.loads(text)

    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert text == (CHART / "files" / "dashboards" / f"{name}.json").read_text("utf-8")
    cells = [
        (column, panel["gridPos"]["y"])
        for panel in document["panels"]
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def test_alerts_arrive_with_their_templates() -> None:
    """Helm must not take Prometheus's templates for its own."""
    (rule,) = (each for each in manifests("everything") if each["kind"] == "PrometheusRule")
    (group,) = rule["spec"]["groups"]

    assert EVERYTHING["telemetry"]["alerts"]["enabled"]
    assert [each["alert"] for each in group["rules"]] == [alert.name for alert in ALERTS]
    assert any("{{ $value | humanizePercentage }}" in each["annotations"]["summary"] for each in group["rules"])


def _queries(namespace: str, **autoscaling: object) -> dict[str, str]:
    """Return what KEDA asks for each pool of `ultra` and `ultra-big`, by pool."""
    scaling = {"enabled": True, "kind": "keda", "prometheusAddress": "http://prometheus:9090", "kvUsedRatio": 0}
    pool = {"autoscaling": scaling | autoscaling}
    values = {
        **MINIMAL,
        "decode": {"pools": {"ultra": pool, "ultra-big": pool}},
        "telemetry": {"podMonitor": {"enabled": True}},
        "networkPolicy": {"metrics": [{"podSelector": {}}]},
    }
    return {
        each["metadata"]["labels"]["baton/pool"]: trigger["metadata"]["query"]
        for each in manifests_of(render(values, namespace=namespace))
        if each["kind"] == "ScaledObject"
        for trigger in each["spec"]["triggers"]
    }


def test_a_pool_scales_on_the_metrics_of_its_own_pods() -> None:
    """Not on those of a pool whose name begins like its own, nor of a release of the same name elsewhere."""
    queries = _queries("a")
    namespace, pattern = re.search(r'namespace="(.*?)",baton_node_id=~"(.*?)"', queries["ultra"]).groups()  # type: ignore[union-attr]

    assert namespace == "a"
    assert re.fullmatch(pattern, "baton-decode-ultra-7d4b9c6f8d-x2x9z")
    assert not re.fullmatch(pattern, "baton-decode-ultra-big-7d4b9c6f8d-x2x9z")
    assert 'namespace="b"' in _queries("b")["ultra-big"]
    assert "namespace" not in _queries("a", namespaceLabel="")["ultra"]


def test_a_pool_scales_on_a_mean_and_down_again() -> None:
    """A gauge's moment would quadruple a pool for what its pods clear in two seconds; KEDA's cooldown ends no pod."""
    (scaled,) = (each for each in manifests("everything") if each["kind"] == "ScaledObject")
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["poolDefaults"]["autoscaling"]
    (queue,) = (each for each in scaled["spec"]["triggers"] if "queue_seconds" in each["metadata"]["query"])
    behavior = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]

    assert queue["metadata"]["query"].startswith("sum(avg_over_time(baton_node_queue_seconds{")
    assert queue["metadata"]["query"].endswith(f"[{defaults['windowSeconds']}s]))")
    assert behavior == {"scaleDown": {"stabilizationWindowSeconds": defaults["scaleDownSeconds"]}}


def test_prometheus_accepts_the_rules() -> None:
    """By its own tool, where that is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = CHART / "files" / "alerts.yaml"
    checked = subprocess.run((promtool, "check", "rules", rules), capture_output=True, text=True, timeout=300)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"SUCCESS: {len(yaml.safe_load(rules.read_text())['groups'][0]['rules'])} rules found" in checked.stdout


def _outcomes(node_id: str, ratio: float, per_minute: int) -> list[dict[str, str]]:
    """Return the series of a node's prefills that all take `ratio` times their estimate, an hour long."""
    labels = f'baton_term="prefill", baton_node_id="{node_id}", baton_link=""'
    name = "baton_placement_prediction_ratio"
    counts = {bound: per_minute if bound >= ratio else 0 for bound in (*names.PREDICTION_RATIO.buckets, math.inf)}
    bounds = {bound: "+Inf" if bound == math.inf else f"{bound:g}" for bound in counts}
    buckets = [(f'{name}_bucket{{{labels}, le="{bounds[bound]}"}}', counts[bound]) for bound in counts]
    return [
        {"series": series, "values": f"0+{count}x60"}
        for series, count in (*buckets, (f"{name}_count{{{labels}}}", per_minute))
    ]


def test_a_node_that_drifts_is_told_by_name_and_term(tmp_path: Path) -> None:
    """Slower or faster than estimated, for longer than ten minutes; not where there were hardly any requests."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    series = [
        *_outcomes("slow", 1.9, 5),
        *_outcomes("fast", 0.45, 5),
        *_outcomes("right", 1.1, 5),
        *_outcomes("rare", 1.9, 1),
    ]
    labels = {"severity": "warning", "baton_term": "prefill"}
    expected = [{"exp_labels": labels | {"baton_node_id": node_id}} for node_id in ("slow", "fast")]
    checks = [
        {"eval_time": at, "alertname": "BatonPredictionDrifts", "exp_alerts": alerts}
        for at, alerts in (("5m", []), ("40m", [{**alert, "exp_annotations": {}} for alert in expected]))
    ]
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        rule["annotations"] = {}  # their numbers are interpolated
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": checks}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        (promtool, "test", "rules", tmp_path / "test.yaml"), capture_output=True, text=True, timeout=300
    )

    assert done.returncode == 0, done.stdout + done.stderr
