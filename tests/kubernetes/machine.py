"""A machine beside the cluster's nodes: a network namespace of its own, which routes the addresses of pods."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.kubernetes.cluster import Cluster, run
from tests.kubernetes.lab import ROOT

ADDRESS, NODE, NETWORK = "198.18.0.50", "198.18.0.11", "198.18.0.0/15"
"""Of the machine, of the Kubernetes node that it asks, and of all of them with their pods."""
_NAMESPACE = Path("/run/netns/kube-mac")


def on_machine(cluster: Cluster, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Begin a command there and return it; its output is one text."""
    if not _NAMESPACE.exists():
        assert cluster.tools is not None
        run([cluster.tools / "link", str(cluster.folder), "mac", "add", ADDRESS])
        for number in (1, 2):
            route = (f"198.18.{100 + number}.0/24", "via", f"198.18.0.{10 + number}")
            run(["nsenter", f"--net={_NAMESPACE}", "ip", "route", "replace", *route])
    known = {**os.environ, "PYTHONPATH": f"{ROOT / 'services'}:{ROOT}", **(environment or {})}
    entered = ["nsenter", f"--net={_NAMESPACE}", *command]
    return subprocess.Popen(entered, env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
