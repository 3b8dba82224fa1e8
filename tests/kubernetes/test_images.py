"""What a built image is: small, quick to start, without tools, and able to run without rights."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.docker.closure import unmet_imports
from tests.kubernetes.cluster import Cluster, run
from tests.kubernetes.lab import BASE, DOCKER
from tests.kubernetes.results import Measured

CLOSURE = Path(__file__).parents[1] / "docker" / "closure.py"
_TOOLS = ("gcc", "cc", "make", "git", "curl", "wget", "strip", "ld", "pip", "pip3")
_CONFINED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "none")
_MAX_START_SECONDS = 2.0
_FOREIGN_USER = "1000650000:0"
"""As OpenShift gives out: of a namespace's range, in no passwd file, in group 0."""


@pytest.fixture
def images(cluster: Cluster) -> dict[str, str]:
    """Return the images that were built here, by target."""
    if cluster.folder is None:
        pytest.skip("the images of somebody's own cluster are not on this machine")
    cluster.provide("cpu")
    return dict(cluster.images)


def _in(image: str, *command: str, user: str = "", entry: str = "python") -> str:
    flags = [*_CONFINED, *(["--user", user] if user else []), "--entrypoint", entry]
    return run([DOCKER, "run", "--rm", *flags, image, *command], timeout_seconds=300)


@pytest.mark.parametrize("target", ["control", "cpu"])
def test_an_image_has_all_that_its_processes_import(images: dict[str, str], target: str) -> None:
    """Every import at any place of the code succeeds, but of what no process of the image runs."""
    script = "import baton, sys; sys.argv[1:] = [list(baton.__path__)[0]]\n" + CLOSURE.read_text("utf-8")
    found = json.loads(_in(images[target], "-c", script).splitlines()[-1])

    assert unmet_imports(target, found) == []


@pytest.mark.parametrize("user", ["", _FOREIGN_USER])
@pytest.mark.parametrize("target", ["control", "cpu"])
def test_an_image_brings_no_tools_and_writes_nothing(images: dict[str, str], target: str, user: str) -> None:
    """Beyond those of the base; as its own user, and as any other."""
    look = f"import shutil; print([name for name in {_TOOLS!r} if shutil.which(name)])"
    own = "import os; print(os.getuid(), os.access('/', os.W_OK), os.access('/models', os.W_OK))"

    assert _in(images[target], "-c", look, user=user) == _in(BASE, "-c", look)
    assert _in(images[target], "-c", own, user=user).split() == [user.partition(":")[0] or "65532", "False", "False"]


def test_the_control_image_is_small_and_starts_at_once(images: dict[str, str], measured: Measured) -> None:
    """From `docker run` to the listening cache index, as any user."""
    name = images["control"]
    size = int(run([DOCKER, "image", "inspect", name, "--format", "{{.Size}}"]))
    base = int(run([DOCKER, "image", "inspect", BASE, "--format", "{{.Size}}"]))
    flags = [*_CONFINED, "--user", _FOREIGN_USER, "--detach"]
    began = time.monotonic()
    container = run([DOCKER, "run", *flags, name, "serve", "cache-index"]).strip()
    try:
        while "grpc_listening" not in _logs(container):
            assert time.monotonic() - began < 60
            time.sleep(0.05)
        seconds = time.monotonic() - began
    finally:
        run([DOCKER, "rm", "--force", container])

    line = f"control image: {(size - base) / 1e6:.0f} MB beyond its base, listens after {seconds:.1f} s"
    measured(line, bytes_beyond_base=size - base, start_seconds=round(seconds, 2))
    assert seconds <= _MAX_START_SECONDS


def _logs(container: str) -> str:
    return run(["/bin/sh", "-c", f"{DOCKER} logs {container} 2>&1"])
