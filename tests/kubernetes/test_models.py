"""Models as values: the router with the Lease has agents of worker pods load them, and no pod is restarted for it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.load import loading
from tests.kubernetes.release import Release
from tests.kubernetes.results import Measured

SECOND = {"name": "second", "source": "/models/baton-demo", "minReplicas": 2}
THIRD = {"name": "third", "source": "/models/baton-demo", "minReplicas": 2}
_LIMIT_SECONDS = 240.0
_ASK = """
import json, sys, urllib.request
body = {"model": sys.argv[1], "prompt": "Hello", "max_tokens": 4, "temperature": 0}
url = "http://127.0.0.1:8000/v1/completions"
request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=60).status)
"""


def _states(release: Release) -> Mapping[str, str]:
    """Return the state of each model, as the gateway lists them."""
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/v1/models').read().decode())"
    listed = json.loads(release.execute("deployment/baton-gateway", "python", "-c", code))
    return {row["id"]: row.get("state", "") for row in listed["data"]}


def _wait_until_served(release: Release, name: str) -> float:
    """Wait until a model is served, and return the seconds that took."""
    began = time.monotonic()
    while (states := _states(release)).get(name) != "serving":
        assert time.monotonic() - began < _LIMIT_SECONDS, states
        time.sleep(1.0)
    assert release.execute("deployment/baton-gateway", "python", "-c", _ASK, name).strip() == "200"
    return time.monotonic() - began


def _leader(release: Release) -> str:
    lease = release.cluster.get("lease", "baton-router", "--namespace", release.namespace)
    return str(lease["spec"]["holderIdentity"])


def test_models_are_rolled_out_beside_the_first_and_the_leader_may_die(
    cluster: Cluster, namespace: str, measured: Measured
) -> None:
    """Two more, one after the other, under load of the first; the leader's pod is killed in the middle of a change."""
    release = Release.of_example(cluster, namespace, "models", models=[])
    release.install()
    before = {pod.name: pod.num_restarts for pod in release.pods()}
    with loading(release) as load:
        release.upgrade(models=[SECOND])
        second_seconds = _wait_until_served(release, "second")
        after = {pod.name: pod.num_restarts for pod in release.pods()}
        leader = _leader(release)
        release.upgrade(models=[SECOND, THIRD])
        began = time.monotonic()
        while "third" not in _states(release):  # the leader has read it, and orders what to load
            assert time.monotonic() - began < _LIMIT_SECONDS
            time.sleep(0.2)
        cluster.kubectl("delete", "pod", leader, "--namespace", namespace, "--grace-period", "0", "--force")
        third_seconds = _wait_until_served(release, "third")
        report = load.stop()
    release.wait_ready()

    assert after == before
    assert _leader(release) != leader
    assert _states(release) == dict.fromkeys(("baton-demo", "second", "third"), "serving")
    measured(
        f"second model {second_seconds:.0f} s, third {third_seconds:.0f} s over its leader's death; {report.line}",
        second_model_seconds=round(second_seconds, 1),
        third_model_seconds=round(third_seconds, 1),
        **report.numbers,
    )
    report.check(num_least=20)
