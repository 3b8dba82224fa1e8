"""A machine outside of the cluster joins by a token, and decodes what a pod has prefilled."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from baton.demo import checkpoint_dir
from tests.kubernetes.cluster import ADDRESS, NETWORK, NODE, Cluster
from tests.kubernetes.lab import ROOT
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

_PYTHON = {"PYTHONPATH": f"{ROOT / 'services'}:{ROOT}"}
_PORTS = {"routerNodePort": 30010, "joinNodePort": 30012, "cacheIndexNodePort": 30014}


def test_a_machine_joins_by_a_token_and_decodes(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Measured
) -> None:
    """With torch, registered with both routers: the release itself has no node that decodes. One router may go."""
    if cluster.folder is None:
        pytest.skip("no machine can be put beside somebody's own cluster")
    settings = {"engine": "torch", "modelDir": str(checkpoint_dir())}
    outside = {
        "enabled": True,
        "cidrs": [NETWORK],
        "service": {"type": "NodePort", **_PORTS},
        "join": {
            "cacheIndexAddress": f"{NODE}:{_PORTS['cacheIndexNodePort']}",
            "routerAddress": ",".join(f"{NODE}:{_PORTS['routerNodePort'] + number}" for number in (0, 1)),
            "assignments": [{"nodeId": "mac-*", "role": "decode", "settings": settings}],
        },
    }
    pinned = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}
    release = Release.of_example(
        cluster,
        namespace,
        "cpu-only",
        router=pinned,
        cacheIndex=pinned,
        bareMetal=outside,
    )
    release.values = {**release.values, "decode": {"pools": {}}}
    release.cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    baton = (sys.executable, "-m", "baton.cli")
    release.install("--wait=false", seconds=600)
    cluster.kubectl("rollout", "status", "--namespace", namespace, "statefulset/baton-router", "--timeout", "110s")
    token = release.execute("pod/baton-router-0", "baton", "authority", "token", "/etc/baton/authority").strip()
    addresses = ",".join(f"{NODE}:{_PORTS['joinNodePort'] + number}" for number in (1, 0))
    join = ("agent", "--join-token", token, "--join-address", addresses)
    began = time.monotonic()
    own = ("--host", ADDRESS, "--worker-node-id", "mac-1", "--state-dir", str(tmp_path / "mac"))
    machine = cluster.on_machine(*baton, *join, *own, environment=_PYTHON)
    try:
        release.wait_ready(seconds=300)
        with loading(release, clients=4) as load:
            time.sleep(10)
            for pod in release.pods("router"):
                release.delete(pod)
                release.wait_ready()
            report = load.stop()
        nodes = release.execute("deployment/baton-gateway", "baton", "nodes")
    finally:
        machine.terminate()
        print(machine.communicate(timeout=60)[0][-6000:])

    measured(f"joined and answered within {time.monotonic() - began:.0f} s; {report.line}")
    assert "mac-1" in nodes
    report.check(num_least=5)
