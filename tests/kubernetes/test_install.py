"""From `helm install` to the first answer, and what a release says of itself."""

from __future__ import annotations

import json
import time

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

_ASK = """
import json, urllib.request
body = json.dumps({"model": "baton-demo", "prompt": "One two", "max_tokens": 2}).encode()
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", body, {"content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    answer.read()
    print(answer.headers["x-request-id"])
"""
_FOREIGN_USER = 1_000_650_000
"""As OpenShift gives out: of a namespace's range, in no passwd file."""


def _ask(release: Release) -> str:
    """Return the id of a request that the gateway has answered."""
    return release.execute(f"deployment/{release.name}-gateway", "python", "-c", _ASK).strip()


@pytest.mark.sample(seconds=90)
@pytest.mark.parametrize("example", ["minimal", "cpu-only"])
def test_a_release_that_helm_calls_ready_answers_at_once(
    cluster: Cluster, namespace: str, example: str, measured: Measured
) -> None:
    """Clients that begin with the return of `helm install --wait` are all answered."""
    release = Release.of_example(cluster, namespace, example)
    seconds = release.install(seconds=300)
    began = time.monotonic()
    _ask(release)
    first = seconds + time.monotonic() - began
    with loading(release, clients=16, prompts=0, tokens=8) as load:
        time.sleep(5)
        report = load.stop()

    line = f"ready {seconds:.1f} s, first answer {first:.1f} s after `helm install`; {report.line}"
    measured(line, ready_seconds=round(seconds, 1), first_answer_seconds=round(first, 1), **report.numbers)
    report.check(num_least=16)


def test_a_release_named_by_digest_alone_runs_as_any_user(cluster: Cluster, namespace: str) -> None:
    """Of a namespace's range, on a root that cannot be written; the tag, which may move, is nowhere."""
    if cluster.folder is None:
        pytest.skip("what the nodes of somebody's own cluster call an image is theirs to say")
    digest = cluster.digest("control")
    image = {"control": {"digest": digest}}
    release = Release.of_example(cluster, namespace, "minimal", image=image, runAsUser=_FOREIGN_USER)
    release.install()
    pods = cluster.get("pods", "--namespace", namespace)["items"]
    (used,) = {each["spec"]["containers"][0]["image"].partition("@")[2] for each in pods}

    assert used == digest
    assert release.execute(f"deployment/{release.name}-gateway", "id", "-u").strip() == str(_FOREIGN_USER)
    assert _ask(release)


def test_a_release_tests_itself(cluster: Cluster, namespace: str) -> None:
    """`helm test --logs` prints the answer of four tokens."""
    release = Release.of_example(cluster, namespace, "minimal")
    release.install()
    told = cluster.helm("test", release.name, "--namespace", namespace, "--logs")

    assert "Phase:          Succeeded" in told
    assert '"completion_tokens": 4' in told


@pytest.mark.sample
def test_commands_need_no_flags_in_a_pod(cluster: Cluster, namespace: str) -> None:
    """What runs, what a request would cost, what is wrong, and why a request ran where it did."""
    release = Release.of_example(cluster, namespace, "minimal")
    release.install()
    gateway = f"deployment/{release.name}-gateway"
    request_id = _ask(release)

    nodes = release.execute(gateway, "baton", "nodes")
    assert all(pod.name in nodes for pod in (*release.pods("prefill"), *release.pods("decode")))
    assert "baton-demo: 1024 prompt tokens" in release.execute(gateway, "baton", "plan")
    assert json.loads(release.execute(gateway, "baton", "doctor", "--json"))["is_healthy"]
    assert request_id in release.execute(gateway, "baton", "explain", request_id)
