"""Pools follow the load on the metrics of their own pods, up and down again, and lose nothing on the way."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster, CommandError, run
from tests.kubernetes.load import loading
from tests.kubernetes.pool_record import PoolRecord
from tests.kubernetes.release import Release, merged
from tests.kubernetes.results import RESULTS, Measured

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
_TIME_SCALE = 100
"""Of pods that prefill: few prompts keep one busy, half a second each, and leave the host to what is measured."""
_SHARED: dict[str, Any] = {
    "telemetry": {"otlpEndpoint": "http://198.18.0.11:4317"},
    "networkPolicy": {"metrics": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]},
    "router": {"settings": {"prefillPolicy": "remote"}},
}


@pytest.fixture(scope="module")
def autoscaler(cluster: Cluster) -> Cluster:
    """Have KEDA and Prometheus in the cluster."""
    if cluster.tools is None:
        pytest.skip("KEDA and Prometheus of somebody's own cluster are where only they know")
    try:
        cluster.kubectl("get", "--raw", "/apis/external.metrics.k8s.io/v1beta1")
    except CommandError:
        run([cluster.tools / "autoscaling", str(cluster.folder)], timeout_seconds=600)
    return cluster


def _scaled(cluster: Cluster, namespace: str, *pools: str) -> Release:
    """Return a release of which pools that prefill are scaled."""
    pool = {"autoscaling": _SCALING, "settings": {"mockTimeScale": _TIME_SCALE}}
    release = Release.of_example(cluster, namespace, "minimal", **_SHARED)
    release.values = {**release.values, "prefill": {"pools": dict.fromkeys(pools, pool)}}
    return release


def test_a_pool_follows_a_steady_overload_and_no_burst(autoscaler: Cluster, namespace: str, measured: Measured) -> None:
    """A burst is over before a new pod would serve; the end of an overload is followed within half a minute."""
    release = _scaled(autoscaler, namespace, "ultra")
    release.install(seconds=300)
    record = PoolRecord(release, "ultra")
    with record.watched():
        with loading(release, clients=2, characters=3000, prompts=0, tokens=8, name="burst") as load:
            record.mark("burst")
            time.sleep(2)
            load.stop().check()
        record.mark("its end")
        time.sleep(30)
        num_after_burst = max(record.counts())
        with loading(release, clients=16, characters=3000, prompts=0, tokens=8) as load:
            record.mark("overload")
            time.sleep(110)
            report = load.stop()
        ended = record.mark("its end")
        while record.num_pods() > 1 and record.now() < ended + DOWN_SECONDS + 90:
            time.sleep(1)
        seconds = record.now() - ended
    most = max(record.counts())
    record.draw(RESULTS.with_name("kubernetes_autoscaling.png") if RESULTS else None, record.queue_seconds(PROMETHEUS))

    measured(f"{most} pods at most, one again {seconds:.0f} s after the end; {report.line}", **record.numbers())
    assert num_after_burst == 1
    assert most > 1
    assert seconds <= DOWN_SECONDS + 30
    report.check(num_least=20)


def test_pools_and_releases_of_like_names_do_not_move_each_other(
    autoscaler: Cluster, namespace: str, measured: Measured
) -> None:
    """Only pool `ultra` of one release is loaded: `ultra-big` has other KV, the other release no clients."""
    other = f"{namespace[:50]}-b"
    autoscaler.kubectl("create", "namespace", other)
    try:
        idle = _scaled(autoscaler, other, "ultra", "ultra-big")
        busy = _scaled(autoscaler, namespace, "ultra", "ultra-big")
        busy.values = merged(
            busy.values, {"prefill": {"pools": {"ultra-big": {"settings": {"mockShape": "llama-3.1-8b"}}}}}
        )
        for release in (idle, busy):
            release.install(seconds=300)
        records = [PoolRecord(release, pool) for release in (idle, busy) for pool in ("ultra", "ultra-big")]
        with ExitStack() as watching:
            for record in records:
                watching.enter_context(record.watched())
            with loading(busy, clients=16, characters=3000, prompts=0, tokens=8):
                time.sleep(90)
        most = [max(record.counts()) for record in records]
    finally:
        autoscaler.kubectl("delete", "namespace", other, "--timeout", "120s", timeout_seconds=150)

    measured(f"pods at most: idle release {most[:2]}, busy release {most[2:]}, of ultra and ultra-big")
    assert most[:2] == [1, 1]
    assert most[2] > 1
    assert most[3] == 1
