"""TLS between pods from a Secret that is rotated while streams run, keys of clients, and several routers."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from baton.cli.app import make_app
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release, merged
from tests.kubernetes.results import Measured

PAIRS = {"replicas": 2}
TLS = {"tls": {"enabled": True, "secretName": "certificate"}}
DISCOVERY = {"router": PAIRS, "cacheIndex": PAIRS, "gateway": PAIRS, "discovery": {"enabled": True}}


def _secret(cluster: Cluster, namespace: str, name: str, content: dict[str, bytes]) -> None:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    metadata = {"name": name, "namespace": namespace}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster.kubectl("apply", "--filename", "-", text=json.dumps(document))


def _authority(folder: Path) -> dict[str, bytes]:
    """Return the files of a new deployment, as `baton authority create` writes them."""
    assert CliRunner().invoke(make_app(), ["authority", "create", str(folder)]).exit_code == 0
    return {name: (folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}


def test_certificates_are_rotated_while_streams_run(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Measured
) -> None:
    """From one authority to another, by way of both: nobody loses a token, and the old one is believed no more."""
    old, new = (_authority(tmp_path / name) for name in ("old", "new"))
    both = old["ca.crt"] + new["ca.crt"]
    _secret(cluster, namespace, "certificate", old)
    values = merged(TLS, DISCOVERY, {"poolDefaults": PAIRS})
    release = Release.of_example(cluster, namespace, "minimal", **values)
    release.install(seconds=300)
    steps: list[dict[str, Any]] = [{**old, "ca.crt": both}, {**new, "ca.crt": both}, new]
    with loading(release) as load:
        for number, content in enumerate(steps):
            _secret(cluster, namespace, "certificate", content)
            release.upgrade(seconds=300, **{role: {"podAnnotations": {"step": str(number)}} for role in _ROLES})
        time.sleep(3)
        report = load.stop()

    measured(report.line)
    report.check(num_least=20)
    assert "baton-decode" in release.execute("deployment/baton-gateway", "baton", "nodes")


_ROLES = ("gateway", "router", "cacheIndex", "poolDefaults")


def test_only_clients_with_a_key_are_answered(cluster: Cluster, namespace: str) -> None:
    """`helm test` shows its own."""
    _secret(cluster, namespace, "keys", {"keys": b"me:right\n"})
    _secret(cluster, namespace, "mine", {"key": b"right"})
    keys = {"gateway": {"apiKeys": {"existingSecret": "keys"}}, "test": {"apiKeySecret": "mine"}}
    release = Release.of_example(cluster, namespace, "minimal", **keys)
    release.install()
    assert "Succeeded" in cluster.helm("test", release.name, "--namespace", namespace)
    with loading(release, API_KEY="right", clients=2) as load:
        time.sleep(2)
        load.stop().check()
    with loading(release, API_KEY="wrong", clients=2, prompts=0, name="stranger") as load:
        time.sleep(2)
        report = load.stop()

    assert report.num_ok == 0
    assert all("401" in failure["cause"] for failure in report.failures)


@pytest.mark.parametrize("kind", ["router", "cache-index"])
def test_of_two_replicas_one_may_go(cluster: Cluster, namespace: str, kind: str, measured: Measured) -> None:
    """One after the other: nodes are known to both, and the one that comes anew waits until it knows them too."""
    release = Release.of_example(cluster, namespace, "minimal", **merged(DISCOVERY, {"poolDefaults": PAIRS}))
    release.install(seconds=300)
    with loading(release, clients=8) as load:
        for pod in release.pods(kind):
            release.delete(pod)
            release.wait_ready()
        time.sleep(3)
        report = load.stop()

    measured(report.line)
    report.check(num_least=20)
