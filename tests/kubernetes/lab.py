"""Where the cluster comes from: KUBECONFIG's, or one that is brought up here with images that are built here."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.cluster import Cluster, CommandError, run

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("BATON_KUBERNETES_LAB", ROOT.parent / "shared" / "kubernetes"))
"""Scripts that bring a cluster up on this machine; their README says what they need."""
DOCKER = "/usr/bin/docker"
"""The client that goes with Debian's engine."""
BASE = "python:lab"
"""What images stand on: Debian with Python, as a registry's would be."""
_TAG = os.environ.get("BATON_KUBERNETES_TAG", "lab")
"""Of the images: trees that share a cluster have one each."""
_TARGETS = ("control", "cpu")
_BUILD_SECONDS = 3600.0
_NETWORK = Path("/run/netns/kube-n1")
_ENGINE = Path("/run/docker.pid")


class LabError(RuntimeError):
    """This machine cannot bring a cluster up."""


def absence() -> str:
    """Return why there can be no cluster here; empty if there can."""
    if os.environ.get("KUBECONFIG"):
        return "" if shutil.which("kubectl") and shutil.which("helm") else "KUBECONFIG is set, but no kubectl and helm"
    if not (TOOLS / "up").is_file():
        return f"no KUBECONFIG, and no {TOOLS} to bring a cluster up with"
    if os.geteuid() != 0:
        return f"{TOOLS} brings clusters up as root alone"
    return ""


@contextmanager
def running_cluster(*, builds_ahead: bool = False) -> Iterator[Cluster]:
    """Yield a cluster that has the control image; another one gets it when a test needs it.

    What was started here ends, the cluster and the Docker engine, unless BATON_KUBERNETES_KEEP is set.

    Args:
        builds_ahead: Whether the cpu image, which takes minutes, is built beside the first tests.

    Raises:
        LabError: If this machine cannot do it.
    """
    if os.environ.get("KUBECONFIG"):
        yield Cluster((), _images_of_registry())
        return
    folder = Path(os.environ.get("BATON_KUBERNETES_STATE", Path(tempfile.gettempdir()) / "baton-kubernetes"))
    is_up, has_engine = _NETWORK.exists(), _ENGINE.exists()
    if is_up and not (folder / "k").exists():
        raise LabError(f"a cluster is there already, and {folder} is not its folder: BATON_KUBERNETES_STATE names it")
    images = BuiltImages(folder)
    pool = ThreadPoolExecutor(1)
    try:
        _prepare(pool, folder, images, is_up=is_up)
        if builds_ahead:
            pool.submit(images.build, "cpu")
        yield Cluster((str(folder / "k"),), images.names, folder, TOOLS, images.provide)
    finally:
        # With the engine a build ends that no test has waited for.
        if not os.environ.get("BATON_KUBERNETES_KEEP"):
            _end(folder, is_up=is_up, has_engine=has_engine)
        pool.shutdown(cancel_futures=True)


def _prepare(pool: ThreadPoolExecutor, folder: Path, images: BuiltImages, *, is_up: bool) -> None:
    try:
        if Path(DOCKER).exists():  # else both would install packages, and apt lets one in at a time
            pool.submit(images.build, "control")
        if not is_up:
            run([TOOLS / "up", folder, "2"], timeout_seconds=600)
        images.provide("control")
    except (CommandError, OSError, subprocess.TimeoutExpired) as error:
        raise LabError(str(error)) from error


def _end(folder: Path, *, is_up: bool, has_engine: bool) -> None:
    """End what was not there before."""
    if not is_up and (folder / "pid").exists():
        run([TOOLS / "down", folder], timeout_seconds=300)
    if not has_engine and _ENGINE.exists():
        os.kill(int(_ENGINE.read_text("utf-8")), signal.SIGTERM)


def _images_of_registry() -> Mapping[str, str]:
    """Return images that the cluster can pull, or has: by BATON_KUBERNETES_IMAGES, a prefix such as HOST/FOLDER."""
    prefix = os.environ.get("BATON_KUBERNETES_IMAGES", "localhost")
    return {target: f"{prefix}/baton-{target}:{_TAG}" for target in _TARGETS}


class BuiltImages:
    """Images of a Docker engine on this machine, each built once, and copied once into the nodes.

    Args:
        folder: State of the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.names: Mapping[str, str] = {target: f"localhost/baton-{target}:{_TAG}" for target in _TARGETS}
        """repository:tag by target of the Dockerfile."""
        self._loaded = folder / "n1" / "loaded.json"
        self._folder = folder
        self._lock = threading.Lock()
        self._built: set[str] = set()

    def build(self, target: str) -> None:
        """Build an image, unless this session has."""
        with self._lock:
            if target in self._built:
                return
            run([TOOLS / "base-image", BASE], timeout_seconds=_BUILD_SECONDS)
            arguments = ["--build-arg", f"PYTHON_IMAGE={BASE}", "--target", target, "--tag", self.names[target]]
            arguments += ["--file", str(ROOT / "docker" / "Dockerfile"), str(ROOT)]
            run(
                [DOCKER, "build", "--network", "host", *arguments],
                timeout_seconds=_BUILD_SECONDS,
                environment={"DOCKER_BUILDKIT": "1"},
            )
            self._built.add(target)

    def provide(self, target: str) -> None:
        """Build an image and copy it into the nodes, unless they have it."""
        self.build(target)
        name = self.names[target]
        known: dict[str, str] = json.loads(self._loaded.read_text("utf-8")) if self._loaded.exists() else {}
        built = run([DOCKER, "image", "inspect", name, "--format", "{{.Id}}"]).strip()
        if known.get(name) != built:
            run([TOOLS / "load", self._folder, name], timeout_seconds=900)
            self._loaded.write_text(json.dumps({**known, name: built}), "utf-8")
