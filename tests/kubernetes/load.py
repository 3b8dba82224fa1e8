"""Clients in a pod of the cluster: begun, left to themselves while something is done to the release, and asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import Cluster, CommandError
from tests.kubernetes.release import Release

_SCRIPT = Path(__file__).with_name("load_script.py")
_START_SECONDS, _END_SECONDS = 180.0, 150.0


@dataclass(frozen=True)
class LoadReport:
    """What clients saw."""

    num_ok: int
    """Requests that were answered whole."""
    num_wrong: int
    """Of these, whose text was not what it was before."""
    failures: Sequence[Mapping[str, Any]]
    """When, by seconds from the begin, and why others were not."""
    ttft_p50_seconds: float
    """Median of the time to the first token."""
    ttft_p99_seconds: float
    """Its 99th percentile."""
    worst_gap_seconds: float
    """Longest pause between two tokens of an answer."""
    seconds: float
    """How long the load lasted."""

    @property
    def line(self) -> str:
        """Return all of it in a line."""
        return (
            f"{self.num_ok} ok, {len(self.failures)} failed, {self.num_wrong} wrong in {self.seconds:.0f} s;"
            f" TTFT p50 {self.ttft_p50_seconds:.2f} p99 {self.ttft_p99_seconds:.2f} s,"
            f" worst gap {self.worst_gap_seconds:.2f} s"
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """Return what a file of results keeps."""
        return {
            "requests": self.num_ok + len(self.failures),
            "lost": len(self.failures),
            "wrong": self.num_wrong,
            "worst_gap_seconds": round(self.worst_gap_seconds, 3),
            "ttft_p50_seconds": round(self.ttft_p50_seconds, 3),
            "ttft_p99_seconds": round(self.ttft_p99_seconds, 3),
            "seconds": round(self.seconds, 1),
            "failures": list(self.failures)[:50],
        }

    def check(self, *, num_lost: int = 0, num_least: int = 1) -> None:
        """Assert that no token was wrong, and no more requests failed than may."""
        assert self.num_wrong == 0, self.line
        assert len(self.failures) <= num_lost, (self.line, list(self.failures)[:5])
        assert self.num_ok >= num_least, self.line


class Load:
    """Clients that run."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self.report: LoadReport | None = None
        """What they saw; None while they run."""

    def is_ready(self) -> bool:
        """Return whether every prompt has been answered once."""
        try:
            self._execute("test", "-f", "/tmp/ready")
        except CommandError:
            return False
        return True

    def stop(self) -> LoadReport:
        """Let running answers end, and return what the clients saw."""
        if self.report is not None:
            return self.report
        with suppress(CommandError):  # the clients may end, and their pod with them, before `touch` does
            self._execute("touch", "/tmp/stop")
        waiting = ("--for=jsonpath={.status.phase}=Succeeded", f"--timeout={_END_SECONDS:.0f}s")
        self._cluster.kubectl(
            "wait", "--namespace", self._namespace, f"pod/{self._name}", *waiting, timeout_seconds=_END_SECONDS + 30
        )
        text = self._cluster.kubectl("logs", "--namespace", self._namespace, self._name)
        self.report = LoadReport(**json.loads(text.splitlines()[-1]))
        return self.report

    def _execute(self, *command: str) -> None:
        self._cluster.kubectl("exec", "--namespace", self._namespace, self._name, "--", *command)


@contextmanager
def loading(
    release: Release,
    *,
    clients: int = 4,
    tokens: int = 24,
    characters: int = 400,
    prompts: int = 12,
    node: str = "",
    name: str = "load",
    **environment: str,
) -> Iterator[Load]:
    """Load a release for as long as the context lasts.

    Args:
        release: Which; where it does not answer yet, its first answer is waited for.
        clients: That ask at once.
        tokens: Of each answer.
        characters: Of each prompt.
        prompts: Different ones, whose answers are known; 0: every prompt is new, and no answer is compared.
        node: Kubernetes node of the clients; empty: any.
        name: Of their pod.
        environment: Further variables, such as API_KEY.
    """
    cluster, namespace = release.cluster, release.namespace
    variables = {
        "URL": release.url,
        "MODEL": str(release.values["model"].get("name", "baton-demo")),
        "CLIENTS": str(clients),
        "TOKENS": str(tokens),
        "CHARACTERS": str(characters),
        "PROMPTS": str(prompts),
        **environment,
    }
    cluster.kubectl("apply", "--filename", "-", text=json.dumps(_pod(cluster, namespace, name, node, variables)))
    try:
        load, deadline = Load(cluster, namespace, name), time.monotonic() + _START_SECONDS
        while not load.is_ready():
            assert time.monotonic() < deadline, "the release answers no prompt"
            time.sleep(0.2)
        yield load
        load.stop()
    finally:
        cluster.kubectl("delete", "pod", name, "--namespace", namespace, "--grace-period", "0", "--force")


def _pod(cluster: Cluster, namespace: str, name: str, node: str, variables: Mapping[str, str]) -> Mapping[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "load",
        "image": cluster.images["control"],
        "imagePullPolicy": cluster.image_values["pullPolicy"],
        "command": ["python", "-c", _SCRIPT.read_text("utf-8")],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "securityContext": security,
    }
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
