"""What docs/kubernetes.md tells people to type works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton.demo import checkpoint_dir
from tests.kubernetes.cluster import ADDRESS, NETWORK, NODE, Cluster, CommandError, run
from tests.kubernetes.lab import ROOT
from tests.kubernetes.release import Release, merged
from tests.kubernetes.results import Measured

_PAGE = ROOT / "docs" / "kubernetes.md"
_NAMESPACE = "llm"
_ON_MACHINE = "# on the machine"
"""Begins a block that is typed there, and goes on."""


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the chart, values and `baton`; the namespace of the page is not there yet."""
    if cluster.folder is None:
        pytest.skip("the page drains a node, and puts a machine beside the cluster: not somebody's own")
    with pytest.raises(CommandError):
        cluster.kubectl("get", "namespace", _NAMESPACE)
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    values = merged(Release.of_example(cluster, _NAMESPACE, "minimal").values, {"image": cluster.image_values})
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "bin").mkdir()
    command = f'#!/bin/sh\nPYTHONPATH={ROOT / "services"}:{ROOT} exec {sys.executable} -m baton.cli "$@"\n'
    (tmp_path / "bin" / "baton").write_text(command)
    (tmp_path / "bin" / "baton").chmod(0o755)
    yield tmp_path
    cluster.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--timeout", "120s", timeout_seconds=150)


def test_the_commands_of_the_page_work_one_after_the_other(cluster: Cluster, folder: Path, measured: Measured) -> None:
    """Installed, tested, upgraded, rolled back, scaled, drained, given certificates, joined from outside, looked at."""
    blocks = re.findall(r"^```sh\n(.*?)^```", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    names = {
        "NODE": "n1",
        "NODE_IP": NODE,
        "NETWORK": NETWORK,
        "ADDRESS": ADDRESS,
        "ENGINE": "mock",
        "MODEL": str(checkpoint_dir()),
    }
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **names}
    machines: list[subprocess.Popen[str]] = []

    assert len(blocks) >= 7
    try:
        for block in blocks:
            began = time.monotonic()
            script = f"set -euo pipefail; cd {folder}; PATH={folder / 'bin'}:$PATH\n{block}"
            if block.startswith(_ON_MACHINE):
                machines.append(cluster.on_machine("bash", "-c", script, environment=environment))
                _wait_for_machine(cluster)
            else:
                run([*cluster.prefix, "bash", "-c", script], timeout_seconds=900, environment=environment)
            measured(f"{block.splitlines()[0][:60]!r}: {time.monotonic() - began:.0f} s")
    finally:
        for machine in machines:
            machine.terminate()
            machine.communicate(timeout=60)


def _wait_for_machine(cluster: Cluster) -> None:
    deadline = time.monotonic() + 120
    ask = ("exec", "--namespace", _NAMESPACE, "deployment/baton-gateway", "--", "baton", "nodes")
    while "mac-1" not in (told := cluster.kubectl(*ask)):
        assert time.monotonic() < deadline, told
        time.sleep(1)
