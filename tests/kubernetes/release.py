"""A release of the chart in a namespace that tests made."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from charts.render import CHART, read_example
from tests.kubernetes.cluster import Cluster, CommandError

WAIT_SECONDS = 300
_SMALL = {"resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
_REQUESTS = dict.fromkeys(("gateway", "router", "cacheIndex", "poolDefaults"), _SMALL)
"""Several releases of two of everything are to fit into nodes of two cores; limits stay the example's."""


class Pod(NamedTuple):
    """One pod of a release."""

    name: str
    """Its name."""
    node: str
    """Kubernetes node that it is on."""
    container_id: str
    """Of its only container, without the runtime's prefix."""
    is_ready: bool
    """Whether Services send it anything."""
    num_restarts: int
    """Times that its container was started again."""
    last_end: str
    """Why it ended last; OOMKilled if the kernel ended it for want of memory."""
    memory_limit: str
    """Of its only container, such as 1Gi."""


def merged(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in which later ones win, key by key."""
    result: dict[str, Any] = {}
    for values in several:
        for key, value in values.items():
            known = result.get(key)
            result[key] = merged(known, value) if isinstance(known, dict) and isinstance(value, Mapping) else value
    return result


@dataclass
class Release:
    """Installs, changes and asks one release."""

    cluster: Cluster
    namespace: str
    values: Mapping[str, Any]
    name: str = "baton"

    @classmethod
    def of_example(cls, cluster: Cluster, namespace: str, example: str, **changes: Any) -> Release:
        """Return an example of the chart as a release, not yet installed."""
        return cls(cluster, namespace, merged(read_example(example), _REQUESTS, changes))

    @property
    def url(self) -> str:
        """Return where the gateway is, for a pod."""
        return f"http://{self.name}-gateway.{self.namespace}.svc"

    def install(self, *flags: str, seconds: int = WAIT_SECONDS) -> float:
        """Install the release, wait until helm calls it ready, and return the seconds that took."""
        return self._helm("install", *flags, seconds=seconds)

    def upgrade(self, *flags: str, seconds: int = WAIT_SECONDS, **changes: Any) -> float:
        """Change values, wait until helm calls the release ready, and return the seconds that took.

        Raises:
            CommandError: If it is not ready in time; the values stay as they were before.
        """
        before, self.values = self.values, merged(self.values, changes)
        try:
            return self._helm("upgrade", *flags, seconds=seconds)
        except CommandError:
            self.values = before
            raise

    def rollback(self) -> None:
        """Go back to the revision before."""
        arguments = ("--namespace", self.namespace, "--wait", "--timeout", f"{WAIT_SECONDS}s")
        self.cluster.helm("rollback", self.name, *arguments)

    def pods(self, role: str = "") -> Sequence[Pod]:
        """Return the pods that are not going, of one role or of all."""
        wanted = f"app.kubernetes.io/instance={self.name}"
        wanted += f",app.kubernetes.io/component={role}" if role else ",app.kubernetes.io/component!=test"
        found = self.cluster.get("pods", "--namespace", self.namespace, "--selector", wanted)["items"]
        return [_pod(each) for each in found if "deletionTimestamp" not in each["metadata"]]

    def kill(self, role: str) -> Pod:
        """Kill the first pod of a role by SIGKILL and return it: where nodes are not ours, delete it without grace."""
        pod = self.pods(role)[0]
        if self.cluster.folder:
            self.cluster.kill_container(pod.node, pod.container_id)
        else:
            self.delete(pod)
        return pod

    def delete(self, pod: Pod) -> None:
        """Delete a pod without grace."""
        flags = ("--namespace", self.namespace, "--grace-period", "0", "--force")
        self.cluster.kubectl("delete", "pod", pod.name, *flags)

    def execute(self, target: str, *command: str, timeout_seconds: float = 60.0) -> str:
        """Return what a command prints in a pod, or in the first pod of a Deployment."""
        arguments = ("exec", "--namespace", self.namespace, target, "--", *command)
        return self.cluster.kubectl(*arguments, timeout_seconds=timeout_seconds)

    def wait_ready(self, *, seconds: float = WAIT_SECONDS) -> float:
        """Wait until every pod is ready, and return the seconds that took."""
        started = time.monotonic()
        while not ((pods := self.pods()) and all(pod.is_ready for pod in pods)):
            assert time.monotonic() - started < seconds, [pod for pod in pods if not pod.is_ready]
            time.sleep(0.5)
        return time.monotonic() - started

    def _helm(self, command: str, *flags: str, seconds: int) -> float:
        values = merged(self.values, {"image": self.cluster.image_values})
        if values.get("poolDefaults", {}).get("engine") != "mock":
            self.cluster.provide("cpu")
        arguments = (self.name, str(CHART), "--namespace", self.namespace, "--values", "-")
        started = time.monotonic()
        waiting = ("--wait", "--timeout", f"{seconds}s")
        self.cluster.helm(command, *arguments, *waiting, *flags, text=json.dumps(values), timeout_seconds=seconds + 60)
        return time.monotonic() - started


def _pod(found: Mapping[str, Any]) -> Pod:
    status = found["status"]
    containers = status.get("containerStatuses") or [{}]
    ended = containers[0].get("lastState", {}).get("terminated", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", ())}
    return Pod(
        name=found["metadata"]["name"],
        node=found["spec"].get("nodeName", ""),
        container_id=containers[0].get("containerID", "").rpartition("/")[2],
        is_ready=conditions.get("Ready") == "True",
        num_restarts=containers[0].get("restartCount", 0),
        last_end=ended.get("reason", ""),
        memory_limit=found["spec"]["containers"][0]["resources"]["limits"]["memory"],
    )
