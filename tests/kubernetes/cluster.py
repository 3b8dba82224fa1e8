"""A live Kubernetes: how tests talk to it, and what may be done to its nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALL_SECONDS = 120.0
ADDRESS, NODE, NETWORK = "198.18.0.50", "198.18.0.11", "198.18.0.0/15"
"""Of a machine beside the cluster's nodes, of the node that it asks, and of all of them with their pods."""
_MACHINE = Path("/run/netns/kube-mac")


class CommandError(AssertionError):
    """A command failed; the message has what it said."""


def run(
    command: Sequence[str | Path],
    *,
    text: str | None = None,
    timeout_seconds: float = CALL_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return what a command prints.

    Raises:
        CommandError: If it fails.
    """
    done = subprocess.run(
        [str(part) for part in command],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode:
        told = "\n".join(filter(None, (done.stdout[-3000:], done.stderr[-3000:])))
        raise CommandError(f"{' '.join(map(str, command))}: status {done.returncode}\n{told}")
    return done.stdout


@dataclass(frozen=True)
class Cluster:
    """A cluster that tests may use."""

    prefix: Sequence[str]
    """Goes before kubectl and helm: enters the cluster's network, or nothing."""
    images: Mapping[str, str]
    """repository:tag by target of the Dockerfile."""
    folder: Path | None = None
    """State of a cluster that these tests brought up, whose nodes are theirs to break; None: somebody's own."""
    tools: Path | None = None
    """Scripts of that cluster."""
    provide: Callable[[str], None] = lambda _target: None
    """Waits until the nodes have the image of a target."""

    def kubectl(self, *arguments: str, text: str | None = None, timeout_seconds: float = CALL_SECONDS) -> str:
        """Return what kubectl prints."""
        return run([*self.prefix, "kubectl", *arguments], text=text, timeout_seconds=timeout_seconds)

    def get(self, *arguments: str) -> Any:
        """Return objects as JSON has them."""
        return json.loads(self.kubectl("get", *arguments, "--output", "json"))

    def helm(self, *arguments: str, text: str | None = None, timeout_seconds: float = 900.0) -> str:
        """Return what helm prints."""
        return run([*self.prefix, "helm", *arguments], text=text, timeout_seconds=timeout_seconds)

    @property
    def image_values(self) -> Mapping[str, object]:
        """Return the values of the chart that name the images."""
        values: dict[str, object] = {"registry": "", "pullPolicy": "Never" if self.folder else "IfNotPresent"}
        for target, name in self.images.items():
            repository, _, tag = name.rpartition(":")
            values[target] = {"repository": repository, "tag": tag}
        return values

    # What is done to the nodes of a cluster of one's own.

    def link(self, node: str, state: str) -> None:
        """Join a node's network cable ("up"), or pull it ("down")."""
        assert self.tools is not None
        run([self.tools / "link", str(self.folder), node, state])

    def on_machine(self, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Begin a command on a machine beside the nodes, which routes addresses of pods; its output is one text."""
        if not _MACHINE.exists():
            assert self.tools is not None
            run([self.tools / "link", str(self.folder), "mac", "add", ADDRESS])
            for number in (1, 2):
                route = (f"198.18.{100 + number}.0/24", "via", f"198.18.0.{10 + number}")
                run(["nsenter", f"--net={_MACHINE}", "ip", "route", "replace", *route])
        entered = ["nsenter", f"--net={_MACHINE}", *command]
        known = {**os.environ, **(environment or {})}
        return subprocess.Popen(entered, env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def digest(self, target: str) -> str:
        """Return the digest of an image, by which nodes know it from then on too."""
        repository, _, _ = self.images[target].rpartition(":")
        for node in self._nodes():
            (line,) = self._ctr(node, "images", "ls", f"name=={self.images[target]}").splitlines()[1:]
            digest = line.split()[2]
            self._ctr(node, "images", "tag", "--force", self.images[target], f"{repository}@{digest}")
        return digest

    def kill_container(self, node: str, container_id: str) -> None:
        """Kill a container's processes by SIGKILL, as the kernel does for want of memory."""
        self._ctr(node, "task", "kill", "--signal", "SIGKILL", container_id)

    def signal_control_plane(self, number: signal.Signals) -> None:
        """Stop or continue the API server, and DNS."""
        assert self.folder is not None
        pids = [int((self.folder / "pid" / "apiserver").read_text())]
        for node in self._nodes():
            for line in self._ctr(node, "task", "ls").splitlines()[1:]:
                _, pid, _ = line.split()
                if "coredns" in Path(f"/proc/{pid}/cmdline").read_text():
                    pids.append(int(pid))
        for pid in pids:
            os.kill(pid, number)

    def _nodes(self) -> Sequence[str]:
        assert self.folder is not None
        return sorted(path.parent.name for path in self.folder.glob("n*/containerd.sock"))

    def _ctr(self, node: str, *arguments: str) -> str:
        return run(["ctr", "--address", f"{self.folder}/{node}/containerd.sock", "--namespace", "k8s.io", *arguments])
