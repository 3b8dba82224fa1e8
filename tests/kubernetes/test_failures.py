"""Processes, nodes and the control plane fail while clients stream."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

PAIRS = {"replicas": 2}
TWO_OF_EACH = {"gateway": PAIRS, "poolDefaults": PAIRS, "cacheIndex": PAIRS}


@pytest.fixture
def release(cluster: Cluster, namespace: str) -> Release:
    """Return two of everything."""
    release = Release.of_example(cluster, namespace, "minimal", **TWO_OF_EACH)
    release.install()
    return release


@contextmanager
def _own_nodes(cluster: Cluster) -> Iterator[None]:
    if cluster.folder is None:
        pytest.skip("nodes and control plane of somebody's own cluster are left alone")
    yield


@pytest.mark.sample
@pytest.mark.parametrize("roles", [("router", "cache-index", "prefill", "decode")])
def test_a_sigkill_of_each_loses_nothing(release: Release, roles: tuple[str, ...], measured: Measured) -> None:
    """Of every role but the gateway, one after the other."""
    with loading(release) as load:
        for role in roles:
            release.kill(role)
            time.sleep(5)
        report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_either_of_two_workers_carries_on_alone(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """Of two unlike pods that play any part each is killed, then each goes for good and comes back."""
    release = Release.of_example(cluster, namespace, "workers")
    release.install()
    pools = ("deployment/baton-worker-spark", "deployment/baton-worker-ultra")
    with loading(release) as load:
        for pod in release.pods("worker"):
            if cluster.folder:
                cluster.kill_container(pod.node, pod.container_id)
            else:
                release.delete(pod)
            time.sleep(8)
            release.wait_ready()
        for pool in pools:
            for replicas in (0, 1):
                cluster.kubectl("scale", pool, "--namespace", namespace, f"--replicas={replicas}")
                cluster.kubectl("rollout", "status", pool, "--namespace", namespace, "--timeout", "120s")
                time.sleep(5)
            release.wait_ready()
        report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_a_drained_node_loses_nothing(cluster: Cluster, release: Release, measured: Measured) -> None:
    """As before maintenance: its pods leave one by one, by their budgets."""
    node = release.pods("decode")[0].node
    other = next(pod.node for pod in release.pods() if pod.node != node)
    with loading(release, node=other) as load:
        try:
            flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "180s")
            selector = f"app.kubernetes.io/instance={release.name}"
            cluster.kubectl("drain", node, *flags, "--pod-selector", selector, timeout_seconds=200)
            report = load.stop()
        finally:
            cluster.kubectl("uncordon", node)

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_a_node_that_is_cut_off_loses_nothing(cluster: Cluster, release: Release, measured: Measured) -> None:
    """Its pods are silent, not gone; requests go on elsewhere within seconds.

    Gateways are on the side of the clients: what a client loses with its own gateway is no business of Baton's.
    """
    with _own_nodes(cluster):
        release.upgrade(gateway={"nodeSelector": {"kubernetes.io/hostname": "n1"}})
        with loading(release, node="n1", clients=8) as load:
            cluster.link("n2", "down")
            try:
                time.sleep(30)
            finally:
                cluster.link("n2", "up")
            time.sleep(5)
            report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_a_control_plane_that_is_away_loses_nothing(cluster: Cluster, release: Release, measured: Measured) -> None:
    """API server and DNS are frozen for 45 s, and meanwhile a decode node and a router are killed."""
    with _own_nodes(cluster), loading(release) as load:
        victims = [release.pods(role)[0] for role in ("decode", "router")]
        cluster.signal_control_plane(signal.SIGSTOP)
        try:
            for pod in victims:
                time.sleep(5)
                cluster.kill_container(pod.node, pod.container_id)
            time.sleep(35)
        finally:
            cluster.signal_control_plane(signal.SIGCONT)
        time.sleep(10)
        report = load.stop()

    measured(report.line, **report.numbers)
    report.check(num_least=20)


def test_random_pods_are_deleted_for_four_minutes(release: Release, measured: Measured) -> None:
    """One every six seconds, without grace, gateways too: only clients of those may lose what they asked.

    One that is ready is left of each role without which no request can be served.
    """
    draw, num_gateways = random.Random(16), 0
    with loading(release, clients=8) as load:
        end = time.monotonic() + 240
        while time.monotonic() < end:
            began = time.monotonic()
            pods = [pod for pod in release.pods() if pod.is_ready]
            by_role = {
                role: [pod for pod in pods if f"-{role}" in pod.name] for role in ("gateway", "router", "decode")
            }
            candidates = [pod for pod in pods if all(pod not in few or len(few) > 1 for few in by_role.values())]
            if candidates:
                victim = draw.choice(candidates)
                num_gateways += victim in by_role["gateway"]
                release.delete(victim)
            time.sleep(max(0.0, 6 - (time.monotonic() - began)))
        report = load.stop()

    measured(f"{num_gateways} gateways among the deleted; {report.line}", **report.numbers)
    assert all(_is_of_a_gateway(failure) for failure in report.failures), list(report.failures)[:5]
    report.check(num_lost=8 * num_gateways, num_least=100)


def _is_of_a_gateway(failure: object) -> bool:
    cause = str(dict(failure)["cause"])  # type: ignore[call-overload]
    return any(
        text in cause for text in ("ConnectionReset", "closed before", "IncompleteRead", "Connect call", "Timeout")
    )
