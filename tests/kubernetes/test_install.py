"""From `helm install` to the first answer, and what a release says of itself."""

from __future__ import annotations

import json
import time

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured


@pytest.mark.sample(seconds=90)
@pytest.mark.parametrize("example", ["minimal", "cpu-only"])
def test_a_release_that_helm_calls_ready_answers_at_once(
    cluster: Cluster, namespace: str, example: str, measured: Measured
) -> None:
    """Clients that begin with the return of `helm install --wait` are all answered."""
    release = Release.of_example(cluster, namespace, example)
    seconds = release.install(seconds=300)
    began = time.monotonic()
    with loading(release, clients=16, prompts=0, tokens=8) as load:
        time.sleep(5)
        report = load.stop()

    report.check(num_least=16)
    measured(
        f"{example}: ready after {seconds:.1f} s, load pod and answers {time.monotonic() - began:.1f} s",
        ready_seconds=round(seconds, 1),
    )
    measured(report.line, **report.numbers)


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
    ask = "import json,urllib.request as u; r=u.Request('http://127.0.0.1:8000/v1/completions', json.dumps("
    ask += "{'model': 'baton-demo', 'prompt': 'One two', 'max_tokens': 2}).encode(), {'content-type': "
    ask += "'application/json'}); a=u.urlopen(r); a.read(); print(a.headers['x-request-id'])"
    request_id = release.execute(gateway, "python", "-c", ask).strip()

    nodes = release.execute(gateway, "baton", "nodes")
    assert all(pod.name in nodes for pod in (*release.pods("prefill"), *release.pods("decode")))
    assert "baton-demo: 1024 prompt tokens" in release.execute(gateway, "baton", "plan")
    assert json.loads(release.execute(gateway, "baton", "doctor", "--json"))["is_healthy"]
    assert request_id in release.execute(gateway, "baton", "explain", request_id)
