"""Certificates of pods, theirs alone or one that is rotated while streams run; keys of clients; several routers."""

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
TLS = {"tls": {"secretName": "certificate"}}
SEVERAL = {"cacheIndex": PAIRS, "gateway": PAIRS}


def _secret(cluster: Cluster, namespace: str, name: str, content: dict[str, bytes]) -> None:
    data = {key: base64.b64encode(value).decode() for key, value in content.items()}
    metadata = {"name": name, "namespace": namespace}
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster.kubectl("apply", "--filename", "-", text=json.dumps(document))


def _authority(folder: Path) -> dict[str, bytes]:
    """Return the files of a new deployment, as `baton authority create` writes them."""
    assert CliRunner().invoke(make_app(), ["authority", "create", str(folder)]).exit_code == 0
    return {name: (folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}


@pytest.mark.sample
def test_each_pod_enrols_with_its_own_account(cluster: Cluster, namespace: str, measured: Measured) -> None:
    """A certificate that names the pod, in a file of its owner's; nobody else's token gets one, nor one for others."""
    release = Release.of_example(cluster, namespace, "minimal")
    seconds = release.install()
    names = {}
    for pod in release.pods():
        told = json.loads(release.execute(f"pod/{pod.name}", "python", "-c", _LOOK))
        names[pod.name] = told["name"]
        assert (told["modes"], told["filesystem"]) == ([0o600, 0o600], "tmpfs"), told
        assert told["days"] <= 1.1
        assert told["has_key"] == ("-router-" in pod.name), pod.name
    nodes = {pod.name for role in ("prefill", "decode") for pod in release.pods(role)}
    mine = {name: shown for name, shown in names.items() if name in nodes}
    stranger = cluster.kubectl("create", "token", "default", "--namespace", namespace, "--audience", "baton").strip()
    api = cluster.kubectl("create", "token", "baton-gateway", "--namespace", namespace).strip()
    refused = [release.execute("deployment/baton-gateway", "python", "-c", _JOIN, token) for token in (stranger, api)]

    assert mine == {name: name for name in nodes}
    assert {shown for name, shown in names.items() if name not in nodes} == {"gateway", "router", "cache-index"}
    assert [text.strip() for text in refused] == ["UNAUTHENTICATED"] * 2
    measured(f"ready {seconds:.1f} s; {len(names)} pods with a certificate of their own")


def test_an_upgrade_and_a_new_installation_keep_the_authority(cluster: Cluster, namespace: str) -> None:
    """The Job makes one if there is none: not at the next upgrade, nor after an uninstallation; its rights are gone."""
    release = Release.of_example(cluster, namespace, "minimal")
    release.install()
    first = cluster.get("secret", "baton-authority", "--namespace", namespace)
    release.upgrade(logLevel="debug")
    upgraded = cluster.get("secret", "baton-authority", "--namespace", namespace)
    cluster.helm("uninstall", release.name, "--namespace", namespace, "--wait")
    release.install()

    assert upgraded == first == cluster.get("secret", "baton-authority", "--namespace", namespace)
    assert cluster.get("roles,jobs", "--namespace", namespace, "--selector", _OF_AUTHORITY)["items"] == []


def test_certificates_end_and_are_renewed_while_streams_run(
    cluster: Cluster, namespace: str, measured: Measured
) -> None:
    """Each holds for three minutes: after four, no connection is left that the first one could have opened anew."""
    values = merged(SEVERAL, {"poolDefaults": PAIRS, "tls": {"certificateHours": 0.05}})
    release = Release.of_example(cluster, namespace, "minimal", **values)
    release.install(seconds=300)
    pods = release.pods()
    first = {pod.name: json.loads(release.execute(f"pod/{pod.name}", "python", "-c", _LOOK)) for pod in pods}
    with loading(release) as load:
        time.sleep(240)
        for role in ("router", "decode"):  # what calls them must show a certificate that holds
            release.delete(release.pods(role)[0])
            release.wait_ready()
        time.sleep(3)
        report = load.stop()
    kept = [pod.name for pod in release.pods() if pod.name in first]
    last = {name: json.loads(release.execute(f"pod/{name}", "python", "-c", _LOOK)) for name in kept}

    measured(report.line, **report.numbers)
    report.check(num_least=20)
    assert all(last[name]["begin"] > first[name]["begin"] + 120 for name in kept), (first, last)
    assert len(kept) == len(first) - 2


_OF_AUTHORITY = "app.kubernetes.io/component=authority"
_LOOK = """
import json, os, pathlib
from cryptography import x509
files = [pathlib.Path(os.environ[f"BATON_TLS_{part}_FILE"]) for part in ("CERT", "KEY")]
shown = x509.load_pem_x509_certificate(files[0].read_bytes())
mounts = [line.split() for line in open("/proc/mounts")]
print(json.dumps({
    "name": shown.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value,
    "begin": shown.not_valid_before_utc.timestamp(),
    "days": (shown.not_valid_after_utc - shown.not_valid_before_utc).total_seconds() / 86400,
    "modes": [file.stat().st_mode & 0o777 for file in files],
    "filesystem": [mount[2] for mount in mounts if mount[1] == str(files[1].parent)][0],
    "has_key": pathlib.Path("/etc/baton/authority/ca.key").exists(),
}))
"""
_JOIN = """
import asyncio, os, pathlib, sys, grpc
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.security.authority import certificate_request, create_key
async def main():
    trusted = grpc.ssl_channel_credentials(pathlib.Path(os.environ["BATON_TLS_CA_FILE"]).read_bytes())
    address = os.environ["BATON_ROUTER_ADDRESS"].replace("-pods", "").replace(":8010", ":8012")
    options = (("grpc.ssl_target_name_override", "baton"),)
    wanted = certificate_request(create_key(), "gateway")
    async with grpc.aio.secure_channel(address, trusted, options=options) as channel:
        request = messages.JoinRequest(service_account_token=sys.argv[1], certificate_request=wanted)
        try:
            await JoinServiceStub(channel).Join(request, timeout=10)
            print("signed")
        except grpc.aio.AioRpcError as error:
            print(error.code().name)
asyncio.run(main())
"""


def test_certificates_are_rotated_while_streams_run(
    cluster: Cluster, namespace: str, tmp_path: Path, measured: Measured
) -> None:
    """From one authority to another, by way of both: nobody loses a token, and the old one is believed no more."""
    old, new = (_authority(tmp_path / name) for name in ("old", "new"))
    both = old["ca.crt"] + new["ca.crt"]
    _secret(cluster, namespace, "certificate", old)
    values = merged(TLS, SEVERAL, {"poolDefaults": PAIRS})
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
    assert report.failures
    assert all("401" in failure["cause"] for failure in report.failures)


@pytest.mark.parametrize("kind", ["router", "cache-index"])
def test_of_two_replicas_one_may_go(cluster: Cluster, namespace: str, kind: str, measured: Measured) -> None:
    """One after the other: nodes are known to both, and the one that comes anew waits until it knows them too."""
    release = Release.of_example(cluster, namespace, "minimal", **merged(SEVERAL, {"poolDefaults": PAIRS}))
    release.install(seconds=300)
    with loading(release, clients=8) as load:
        for pod in release.pods(kind):
            release.delete(pod)
            release.wait_ready()
        time.sleep(3)
        report = load.stop()

    measured(report.line)
    report.check(num_least=20)
