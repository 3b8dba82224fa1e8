"""Pools follow the load on the metrics of their own pods, up and down again, and lose nothing on the way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster, run
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

PROMETHEUS = "http://198.18.0.11:9090"
DOWN_SECONDS, WINDOW_SECONDS = 30, 15
_SCALING = {
    "enabled": True,
    "kind": "keda",
    "prometheusAddress": PROMETHEUS,
    "queueSeconds": 0.5,
    "kvUsedRatio": 0,
    "windowSeconds": WINDOW_SECONDS,
    "scaleDownSeconds": DOWN_SECONDS,
    "maxReplicas": 4,
}
_SHARED: dict[str, Any] = {
    "telemetry": {"otlpEndpoint": "http://198.18.0.11:4317"},
    "networkPolicy": {"metrics": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},
    "poolDefaults": {"settings": {"mockTimeScale": 4}},
}


@pytest.fixture(scope="module")
def autoscaler(cluster: Cluster) -> Cluster:
    """Have KEDA and Prometheus in the cluster."""
    if cluster.tools is None:
        pytest.skip("KEDA and Prometheus of somebody's own cluster are where only they know")
    run([cluster.tools / "autoscaling", str(cluster.folder)], timeout_seconds=600)
    return cluster


def _scaled(cluster: Cluster, namespace: str, name: str, *pools: str) -> Release:
    values = {**_SHARED, "decode": {"pools": {pool: {"autoscaling": _SCALING} for pool in pools}}}
    release = Release.of_example(cluster, namespace, "minimal", **values)
    release.values = {**release.values, "decode": values["decode"]}
    release.name = name
    return release


def _num_pods(release: Release, pool: str) -> int:
    return sum(pod.name.startswith(f"{release.name}-decode-{pool}-") for pod in release.pods("decode"))


def _counts(release: Release, pools: Sequence[str], seconds: float) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {pool: [] for pool in pools}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for pool in pools:
            counts[pool].append(_num_pods(release, pool))
        time.sleep(2)
    return counts


def test_a_pool_grows_with_a_steady_overload_and_shrinks_after_its_end(
    autoscaler: Cluster, namespace: str, measured: Measured
) -> None:
    """Within `scaleDownSeconds` and half a minute of its end the pool is as before, and no request was lost."""
    release = _scaled(autoscaler, namespace, "baton", "ultra")
    release.install()
    with loading(release, clients=48, characters=3000, prompts=0, tokens=64) as load:
        grown = _counts(release, ["ultra"], 90)["ultra"]
        report = load.stop()
    ended = time.monotonic()
    while _num_pods(release, "ultra") > 1:
        assert time.monotonic() - ended < DOWN_SECONDS + 90
        time.sleep(2)
    seconds = time.monotonic() - ended

    measured(f"{max(grown)} pods at most, down again {seconds:.0f} s after the end; {report.line}")
    assert max(grown) > 1
    assert seconds <= DOWN_SECONDS + 30
    report.check(num_least=20)


def test_a_burst_that_the_pods_clear_by_themselves_makes_none(autoscaler: Cluster, namespace: str) -> None:
    """Two seconds of it are over before a new pod would serve."""
    release = _scaled(autoscaler, namespace, "baton", "ultra")
    release.install()
    with loading(release, clients=8, prompts=0, tokens=8) as load:
        time.sleep(2)
        load.stop().check()
    counts = _counts(release, ["ultra"], 45)

    assert set(counts["ultra"]) == {1}


def test_pools_and_releases_of_like_names_do_not_move_each_other(autoscaler: Cluster, namespace: str) -> None:
    """Pool `ultra` beside `ultra-big`, and a release of the same name in another namespace."""
    other = f"{namespace[:50]}-b"
    autoscaler.kubectl("create", "namespace", other)
    try:
        idle = _scaled(autoscaler, other, "baton", "ultra", "ultra-big")
        idle.install()
        busy = _scaled(autoscaler, namespace, "baton", "ultra", "ultra-big")
        busy.install()
        with loading(busy, clients=48, characters=3000, prompts=0, tokens=64):
            counts = _counts(idle, ["ultra", "ultra-big"], 60)
    finally:
        autoscaler.kubectl("delete", "namespace", other, "--timeout", "120s", timeout_seconds=150)

    assert {pool: set(seen) for pool, seen in counts.items()} == {"ultra": {1}, "ultra-big": {1}}
