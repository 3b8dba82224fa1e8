"""Under load a pod's memory stays below its limit, whatever the limit is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.kubernetes.cluster import Cluster, CommandError
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

_STATISTICS = "cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null || cat /sys/fs/cgroup/memory.stat"
"""Prints what a container's processes hold, by control groups of version 1 or 2."""
_SHARE, _GROWTH = 0.9, 0.05
"""Of its limit: the most that a pod may hold, and what it may come to hold more in the last third of a load."""
_LOAD_SECONDS = float(os.environ.get("BATON_KUBERNETES_LOAD_SECONDS", "180"))


class Watch(threading.Thread):
    """Looks at the memory of every pod now and then."""

    def __init__(self, release: Release) -> None:
        super().__init__(daemon=True)
        self._release = release
        self._is_over = threading.Event()
        self.samples: dict[str, list[tuple[float, int]]] = {}
        """Seconds since the begin, and bytes, by pod."""

    def run(self) -> None:
        """Look until told to stop."""
        began, pods = time.monotonic(), self._release.pods()
        while not self._is_over.wait(5.0):
            for pod in pods:
                try:
                    used = _held_bytes(self._release.execute(pod.name, "sh", "-c", _STATISTICS))
                except CommandError:
                    continue
                self.samples.setdefault(pod.name, []).append((round(time.monotonic() - began, 1), used))

    def stop(self) -> Mapping[str, Sequence[tuple[float, int]]]:
        """Return the samples of each pod."""
        self._is_over.set()
        self.join(60)
        return self.samples


def _held_bytes(statistics: str) -> int:
    """Return the bytes that the kernel cannot drop: those of processes, and of memory that they share."""
    counts = dict(line.split() for line in statistics.splitlines())
    names = ("total_rss", "total_shmem") if "total_rss" in counts else ("anon", "shmem")
    return sum(int(counts[name]) for name in names)


def _growth(samples: Sequence[tuple[float, int]]) -> int:
    """Return by how much the most of the last third is above that of the middle one."""
    third = samples[-1][0] / 3
    middle = max((used for seconds, used in samples if third <= seconds < 2 * third), default=0)
    return max(used for seconds, used in samples if seconds >= 2 * third) - middle


def _limited(limit: str, **settings: Any) -> Mapping[str, Any]:
    return {"resources": {"limits": {"memory": limit}}, **settings}


@pytest.mark.parametrize(
    ("example", "limit"),
    [("minimal", "512Mi"), ("minimal", "1Gi"), ("minimal", "4Gi"), ("cpu-only", "1Gi"), ("cpu-only", "4Gi")],
)
def test_no_pod_is_killed_for_want_of_memory(
    cluster: Cluster, namespace: str, example: str, limit: str, measured: Measured
) -> None:
    """48 clients with new prompts of 3,700 characters, for three minutes."""
    release = Release.of_example(cluster, namespace, example, poolDefaults=_limited(limit))
    _load_and_check(release, seconds=_LOAD_SECONDS, measured=measured)


def test_no_mock_of_a_large_model_is_killed(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """256 KiB of KV a token: 16 clients killed nodes of 2 GiB within seconds."""
    pools = _limited("2Gi", settings={"mockShape": "llama-3.1-8b"})
    release = Release.of_example(cluster, namespace, "minimal", poolDefaults=pools)
    _load_and_check(release, seconds=40, clients=16, measured=measured)


def _load_and_check(release: Release, *, seconds: float, measured: Measured, clients: int = 48) -> None:
    release.install(seconds=300)
    with loading(release, clients=clients, characters=3700, prompts=0, tokens=16) as load:
        watch = Watch(release)
        watch.start()
        time.sleep(seconds)
        samples = watch.stop()
        report = load.stop()
    pods = release.pods()
    limits = {pod.name: _bytes(pod.memory_limit) for pod in pods}
    most = {name: max(used for _, used in taken) for name, taken in samples.items()}

    shares = {name: used / limits[name] for name, used in most.items()}
    measured(report.line, report=asdict(report), limits=limits, samples=samples)
    measured(", ".join(f"{name} {used / 2**20:.0f} MiB = {shares[name]:.2f}" for name, used in sorted(most.items())))
    assert {pod.name: pod.last_end for pod in pods if pod.num_restarts} == {}
    assert {name: share for name, share in shares.items() if share > _SHARE} == {}
    grown = {name: _growth(taken) / limits[name] for name, taken in samples.items()}
    assert {name: share for name, share in grown.items() if share > _GROWTH} == {}
    assert report.num_wrong == 0
    assert report.num_ok >= clients  # what a host without a core to spare refuses is not for want of memory


def _bytes(quantity: str) -> int:
    return int(quantity[:-2]) * {"Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def test_what_cannot_fit_is_refused_with_the_sum(cluster: Cluster, namespace: str) -> None:
    """The pod says so, instead of being killed under load."""
    settings = {"maxOutboxBytes": 4 << 30}
    release = Release.of_example(cluster, namespace, "minimal", prefill={"pools": {"spark": {"settings": settings}}})
    with pytest.raises(CommandError):
        release.install(seconds=25)
    (pod,) = release.pods("prefill")
    told = cluster.kubectl("logs", "--namespace", namespace, pod.name)

    assert "max_outbox_bytes 4.29 GB" in told
    assert "of the limit of 1.07 GB" in told


def test_an_engine_without_room_for_kv_is_refused_and_not_killed(
    cluster: Cluster, namespace: str, measured: Measured
) -> None:
    """PyTorch alone takes most of 512 MiB: a node that could hold no KV says so when it has measured that."""
    release = Release.of_example(cluster, namespace, "cpu-only", poolDefaults=_limited("512Mi"))
    with pytest.raises(CommandError):
        release.install(seconds=1)
    deadline = time.monotonic() + 600
    while not (ended := [pod for pod in release.pods("decode") if pod.last_end]):
        assert time.monotonic() < deadline, release.pods("decode")
        time.sleep(2)
    told = cluster.kubectl("logs", "--namespace", namespace, ended[0].name, "--previous")
    cause = next((line for line in told.splitlines() if line.startswith("error: ")), told[-500:])

    measured(cause)
    assert ended[0].last_end == "Error"
    assert "of the limit of 537 MB" in cause or "are free of 537 MB" in cause


@pytest.mark.parametrize("example", ["minimal", "cpu-only"])
def test_a_limit_of_one_core_is_heeded(cluster: Cluster, namespace: str, example: str) -> None:
    """The engine computes in one thread, and says why."""
    resources = {"limits": {"cpu": "1", "memory": "2Gi"}}
    release = Release.of_example(cluster, namespace, example, poolDefaults={"resources": resources})
    release.install(seconds=300)
    for pod in (*release.pods("prefill"), *release.pods("decode")):
        told = cluster.kubectl("logs", "--namespace", namespace, pod.name)

        assert "computing_chosen threads=1 threads_cause='cores: 1 of " in told
