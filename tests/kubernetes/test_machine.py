"""A machine outside of the cluster joins by a token, and decodes what a pod has prefilled."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from baton.demo import checkpoint_dir
from tests.kubernetes.cluster import ADDRESS, NETWORK, NODE, Cluster, run
from tests.kubernetes.lab import ROOT
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured
from tests.kubernetes.test_security import _authority, _secret

_PYTHON = {"PYTHONPATH": f"{ROOT / 'services'}:{ROOT}"}
_PORTS = {"routerNodePort": 30010, "cacheIndexNodePort": 30011, "joinNodePort": 30012}


def test_a_machine_joins_by_a_token_and_decodes(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Measured
) -> None:
    """By mutual TLS, with torch: the release itself has no node that decodes."""
    if cluster.folder is None:
        pytest.skip("no machine can be put beside somebody's own cluster")
    folder = tmp_path / "deployment"
    files = _authority(folder)
    _secret(cluster, namespace, "certificate", files)
    _secret(cluster, namespace, "join", {name: (folder / name).read_bytes() for name in ("join.secret", "ca.key")})
    settings = {"engine": "torch", "modelDir": str(checkpoint_dir())}
    outside = {
        "enabled": True,
        "cidrs": [NETWORK],
        "service": {"type": "NodePort", **_PORTS},
        "join": {
            "existingSecret": "join",
            "cacheIndexAddress": f"{NODE}:{_PORTS['cacheIndexNodePort']}",
            "routerAddress": f"{NODE}:{_PORTS['routerNodePort']}",
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
        tls={"enabled": True, "secretName": "certificate"},
    )
    release.values = {**release.values, "decode": {"pools": {}}}
    release.cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    baton = (sys.executable, "-m", "baton.cli")
    token = run([*baton, "authority", "token", folder], environment=_PYTHON).strip()
    join = ("agent", "--join-token", token, "--join-address", f"{NODE}:{_PORTS['joinNodePort']}")
    began = time.monotonic()
    own = ("--host", ADDRESS, "--worker-node-id", "mac-1", "--state-dir", str(tmp_path / "mac"))
    machine = cluster.on_machine(*baton, *join, *own, environment=_PYTHON)
    try:
        release.install(seconds=600)
        with loading(release, clients=4) as load:
            time.sleep(10)
            report = load.stop()
        nodes = release.execute("deployment/baton-gateway", "baton", "nodes")
    finally:
        machine.terminate()
        print(machine.communicate(timeout=60)[0][-6000:])

    measured(f"joined and answered within {time.monotonic() - began:.0f} s; {report.line}")
    assert "mac-1" in nodes
    report.check(num_least=5)
