"""What docs/kubernetes.md tells people to type works as it stands there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from charts.render import read_example
from tests.kubernetes.cluster import Cluster, CommandError, run
from tests.kubernetes.lab import ROOT
from tests.kubernetes.release import merged

_PAGE = ROOT / "docs" / "kubernetes.md"
_NAMESPACE = "llm"


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Return a folder with the chart, values and `baton`; the namespace of the page is not there yet."""
    with pytest.raises(CommandError):
        cluster.kubectl("get", "namespace", _NAMESPACE)
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    values = merged(read_example("minimal"), {"image": cluster.image_values})
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "bin").mkdir()
    command = f'#!/bin/sh\nPYTHONPATH={ROOT / "services"}:{ROOT} exec {sys.executable} -m baton.cli "$@"\n'
    (tmp_path / "bin" / "baton").write_text(command)
    (tmp_path / "bin" / "baton").chmod(0o755)
    yield tmp_path
    cluster.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--timeout", "120s", timeout_seconds=150)


def test_the_commands_of_the_page_work_one_after_the_other(cluster: Cluster, folder: Path) -> None:
    """Installed, tested, upgraded, rolled back, scaled, drained, given certificates, and looked at."""
    blocks = re.findall(r"^```sh\n(.*?)^```", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"

    assert len(blocks) >= 5
    for block in blocks:
        script = f"set -euo pipefail; cd {folder}; PATH={folder / 'bin'}:$PATH\n{block}"
        run([*cluster.prefix, "bash", "-c", script], timeout_seconds=900, environment={"PATH": path})
