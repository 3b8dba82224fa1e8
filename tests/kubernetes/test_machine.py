"""A machine outside of the cluster joins by a token, and decodes what a pod has prefilled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.demo import checkpoint_dir
from tests.kubernetes.cluster import Cluster, run
from tests.kubernetes.lab import ROOT
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured
from tests.kubernetes.test_security import _authority, _secret

ADDRESS, NODE = "198.18.0.50", "198.18.0.11"
_PORTS = {"routerNodePort": 30010, "cacheIndexNodePort": 30011, "joinNodePort": 30012}


@contextmanager
def _machine(cluster: Cluster, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command on a machine of its own beside the cluster's nodes."""
    if not Path("/run/netns/kube-mac").exists():
        assert cluster.tools is not None
        run([cluster.tools / "link", str(cluster.folder), "mac", "add", ADDRESS])
    entered = ["nsenter", "--net=/run/netns/kube-mac", *command]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'services'}:{ROOT}"}
    with subprocess.Popen(entered, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as it:
        try:
            yield it
        finally:
            it.terminate()


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
        "cidrs": ["198.18.0.0/15"],
        "service": {"type": "NodePort", **_PORTS},
        "join": {
            "existingSecret": "join",
            "cacheIndexAddress": f"{NODE}:{_PORTS['cacheIndexNodePort']}",
            "routerAddress": f"{NODE}:{_PORTS['routerNodePort']}",
            "assignments": [{"nodeId": "mac-*", "role": "decode", "settings": settings}],
        },
    }
    release = Release.of_example(
        cluster, namespace, "cpu-only", bareMetal=outside, tls={"enabled": True, "secretName": "certificate"}
    )
    release.values = {**release.values, "decode": {"pools": {}}}
    release.cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce-")
    baton = (sys.executable, "-m", "baton.cli")
    token = run([*baton, "authority", "token", folder], environment={"PYTHONPATH": str(ROOT / "services")}).strip()
    join = ("agent", "--join-token", token, "--join-address", f"{NODE}:{_PORTS['joinNodePort']}")
    began = time.monotonic()
    with _machine(
        cluster, *baton, *join, "--host", ADDRESS, "--node-id", "mac-1", "--state-dir", str(tmp_path / "mac")
    ):
        release.install(seconds=300)
        with loading(release, clients=4) as load:
            time.sleep(10)
            report = load.stop()
        nodes = release.execute("deployment/baton-gateway", "baton", "nodes")

    measured(f"joined and answered within {time.monotonic() - began:.0f} s; {report.line}")
    assert "mac-1" in nodes
    report.check(num_least=5)
