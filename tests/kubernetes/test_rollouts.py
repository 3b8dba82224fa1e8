"""Every pod is replaced under load, and nobody notices; a release that would not serve replaces nothing."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster, CommandError
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

PAIRS = {"replicas": 2}
FLAWS: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]] = {
    "router out of reach": (("--post-renderer", "{renderer}"), {"logLevel": "debug"}),
    "blocks that do not fit": ((), {"poolDefaults": {"settings": {"numBlocks": 10**9}}}),
}
"""Flags of helm and values of releases that would not serve."""
TWO_OF_EACH = {"gateway": PAIRS, "poolDefaults": PAIRS}
SECOND = {"name": "second", "source": "/models/baton-demo", "minReplicas": 2}
THIRD = {"name": "third", "source": "/models/baton-demo", "minReplicas": 2}
_LIMIT_SECONDS = 240.0
_ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[1], "prompt": "Hello", "max_tokens": 4, "temperature": 0}
url = "http://127.0.0.1:8000/v1/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).status)
"""


def _installed(cluster: Cluster, namespace: str) -> Release:
    release = Release.of_example(cluster, namespace, "minimal", **TWO_OF_EACH)
    release.install()
    return release


@pytest.mark.sample
def test_an_upgrade_of_every_pod_loses_nothing(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """All change their log level, one by one."""
    release = _installed(cluster, namespace)
    before = {pod.name for pod in release.pods()}
    with loading(release) as load:
        seconds = release.upgrade(logLevel="debug")
        time.sleep(3)
        report = load.stop()

    assert not before & {pod.name for pod in release.pods()}
    measured(f"upgrade {seconds:.0f} s; {report.line}", **report.numbers)
    report.check(num_least=20)


def test_a_rollback_loses_nothing(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """Back to the revision before, while clients stream."""
    release = _installed(cluster, namespace)
    release.upgrade(logLevel="debug")
    with loading(release) as load:
        release.rollback()
        time.sleep(3)
        report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_scaling_up_and_down_loses_nothing(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """Gateway and both pools go to three pods and back to one by `kubectl scale`, twice, while clients stream."""
    release = _installed(cluster, namespace)
    selector = "app.kubernetes.io/component in (gateway, prefill, decode)"
    scaled = ("deployment", "--namespace", namespace, "--selector", selector)
    with loading(release) as load:
        for replicas in (3, 1, 3, 1):
            cluster.kubectl("scale", *scaled, f"--replicas={replicas}")
            cluster.kubectl("rollout", "status", *scaled, "--timeout", "120s")
            release.wait_ready()
            assert [len(release.pods(role)) for role in ("gateway", "prefill", "decode")] == [replicas] * 3
            time.sleep(3)
        report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


@pytest.mark.parametrize("flaw", FLAWS)
def test_an_upgrade_that_would_not_serve_fails_and_the_old_pods_serve(
    cluster: Cluster, namespace: str, flaw: str, tmp_path: Path, measured: Measured
) -> None:
    """`helm upgrade --wait` says so in time, whatever the new pods' processes do."""
    release = _installed(cluster, namespace)
    renderer = tmp_path / "renderer"
    renderer.write_text("#!/bin/sh\nexec sed 's/--router-address=[^\"]*/--router-address=192.0.2.1:8010/'\n")
    renderer.chmod(renderer.stat().st_mode | stat.S_IXUSR)
    before = {pod.name for pod in release.pods() if pod.is_ready}
    with loading(release) as load:
        flags, changes = FLAWS[flaw]
        with pytest.raises(CommandError):
            release.upgrade(*(flag.format(renderer=renderer) for flag in flags), seconds=40, **changes)
        report = load.stop()
        workers = {name for name in before if "-prefill-" in name or "-decode-" in name}
        still = {pod.name for pod in release.pods() if pod.is_ready}

    assert workers <= still
    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_pods_of_a_rolling_restart_are_spread(cluster: Cluster, namespace: str) -> None:
    """Both of every pair never end up on one of two nodes."""
    release = _installed(cluster, namespace)
    for _ in range(3):
        cluster.kubectl("rollout", "restart", "deployment", "--namespace", namespace)
        cluster.kubectl("rollout", "status", "deployment", "--namespace", namespace, "--timeout", "120s")
        release.wait_ready()
        for role in ("gateway", "prefill", "decode"):
            assert len({pod.node for pod in release.pods(role)}) == 2, role


def _states(release: Release) -> Mapping[str, str]:
    """Return the state of each model, as the gateway lists them."""
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/v1/models').read().decode())"
    listed = json.loads(release.execute("deployment/baton-gateway", "python", "-c", code))
    return {row["id"]: row.get("state", "") for row in listed["data"]}


def _wait_until_served(release: Release, name: str) -> float:
    """Wait until a model is served, and return the seconds that took."""
    began = time.monotonic()
    while (states := _states(release)).get(name) != "serving":
        assert time.monotonic() - began < _LIMIT_SECONDS, states
        time.sleep(1.0)
    assert release.execute("deployment/baton-gateway", "python", "-c", _ASK, name).strip() == "200"
    return time.monotonic() - began


def _leader(release: Release) -> str:
    lease = release.cluster.get("lease", "baton-router", "--namespace", release.namespace)
    return str(lease["spec"]["holderIdentity"])


def test_models_are_rolled_out_beside_the_first_and_the_leader_may_die(
    cluster: Cluster, namespace: str, measured: Measured
) -> None:
    """Two more, one after the other, under load of the first; the leader's pod is killed in the middle of a change."""
    release = Release.of_example(cluster, namespace, "models", models=[])
    release.install()
    before = {pod.name: pod.num_restarts for pod in release.pods()}
    with loading(release) as load:
        release.upgrade(models=[SECOND])
        second_seconds = _wait_until_served(release, "second")
        after = {pod.name: pod.num_restarts for pod in release.pods()}
        leader = _leader(release)
        release.upgrade(models=[SECOND, THIRD])
        began = time.monotonic()
        while "third" not in _states(release):  # the leader has read it, and orders what to load
            assert time.monotonic() - began < _LIMIT_SECONDS
            time.sleep(0.2)
        cluster.kubectl("delete", "pod", leader, "--namespace", namespace, "--grace-period", "0", "--force")
        third_seconds = _wait_until_served(release, "third")
        report = load.stop()
    release.wait_ready()

    assert after == before
    assert _leader(release) != leader
    assert _states(release) == dict.fromkeys(("baton-demo", "second", "third"), "serving")
    measured(
        f"second model {second_seconds:.0f} s, third {third_seconds:.0f} s over its leader's death; {report.line}",
        second_model_seconds=round(second_seconds, 1),
        third_model_seconds=round(third_seconds, 1),
        **report.numbers,
    )
    report.check(num_least=20)
