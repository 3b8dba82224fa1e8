"""The Dockerfile's steps in bare root file systems, and the chart's pods from what they make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from charts.render import manifests_of, read_example, render
from images.dockerfile import read_stages
from images.pod_trial import hosts_file, pods_of
from images.root_file_system import Confinement, command_in
from images.stage_trial import Image, StageTrial

_ROOT = Path(__file__).parents[2]
_TARGETS = os.environ.get("BATON_IMAGES", "")


@pytest.mark.skipif(not _TARGETS, reason="set BATON_IMAGES=control (or control,cpu,cuda) to build them here, as root")
@pytest.mark.timeout(3600)
def test_images_build_run_and_answer() -> None:
    """Each is built, runs as its user on a read-only root, brings no tools, and its pods answer a request."""
    targets = [name for name in _TARGETS.split(",") if name != "control"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_ROOT / "tests"), str(_ROOT), str(_ROOT / "services")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "images.try_build", *targets], cwd=_ROOT, env=environment, timeout=3500
    )

    assert done.returncode == 0


def test_pods_get_what_kubernetes_would_give_them() -> None:
    """Each listens on an address of its own, and finds the others by the names of Services."""
    manifests = manifests_of(render(read_example("minimal")))
    pods = {pod.name: pod for pod in pods_of(manifests)}
    decode, router = pods["baton-decode-ultra"], pods["baton-router"]

    assert {pod.image for pod in pods.values()} == {"control"}
    assert f"--host={decode.address}" in decode.arguments
    assert f"--advertise-address={decode.address}" in decode.arguments
    assert "--node-id=baton-decode-ultra" in decode.arguments
    assert f"{router.address} baton-router baton-router.llm.svc\n" in hosts_file(manifests, list(pods.values()))
    assert len({pod.address for pod in pods.values()}) == len(pods) == 5


def test_a_confined_process_has_a_read_only_root_and_no_rights(tmp_path: Path) -> None:
    """What runs a command mounts first, lowers rights last, and leaves nothing to choose to the command."""
    (tmp_path / "dev").mkdir()
    *_, script = command_in(tmp_path, ["baton", "--help"], Confinement(user="65532:65532", is_read_only=True))
    lines = script.splitlines()

    assert lines[0].startswith("mount --make-rprivate /")
    assert any("remount,bind,ro" in line for line in lines)
    assert "--no-new-privs --bounding-set=-all" in lines[-1]
    assert "--reuid=65532 --regid=65532 --clear-groups" in lines[-1]


def test_stages_are_carried_out_in_folders(tmp_path: Path) -> None:
    """COPY takes what the builder would be sent, from the repository or from another stage; ENV and LABEL are kept."""
    (tmp_path / "Dockerfile").write_text(
        "FROM python:3.11.11-slim-bookworm AS build\nWORKDIR /src\nCOPY docker docker\nENV HOME=/tmp\n"
        "FROM build AS image\nCOPY --from=build /src/docker/slim.py /opt/slim.py\nENV PATH=/opt/bin:$PATH\n"
        'LABEL title="a b"\nUSER 1:1\nENTRYPOINT ["baton"]\n'
    )
    (tmp_path / "base").mkdir()
    trial = StageTrial(
        read_stages(tmp_path / "Dockerfile"),
        context=_ROOT,
        folder=tmp_path / "out",
        base=tmp_path / "base",
        environment={},
        binds={},
        build_arguments={},
    )
    image = trial.build("image")

    assert (image.root / "src/docker/Dockerfile").is_file()
    assert not list(image.root.rglob("__pycache__"))
    assert (image.root / "opt/slim.py").read_bytes() == (_ROOT / "docker/slim.py").read_bytes()
    assert image.environment["PATH"].startswith("/opt/bin:/usr/local/sbin:")
    assert (image.environment["HOME"], image.labels, image.user) == ("/tmp", {"title": "a b"}, "1:1")
    assert image.entrypoint == ["baton"]
    assert Image(tmp_path).user == ""
