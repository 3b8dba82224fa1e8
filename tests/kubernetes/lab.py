"""Where the cluster comes from: KUBECONFIG's, or one that is brought up here with images that are built here."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.cluster import Cluster, run

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("BATON_KUBERNETES_LAB", ROOT.parent / "shared" / "kubernetes"))
"""Scripts that bring a cluster up on this machine; their README says what they need."""
_BASE = "python:lab"
_TARGETS = ("control", "cpu")
_BUILD_SECONDS = 3600.0
_NETWORK = Path("/run/netns/kube-n1")


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
def running_cluster() -> Iterator[Cluster]:
    """Yield a cluster that has the images; one that was brought up here ends, unless BATON_KUBERNETES_KEEP is set."""
    if os.environ.get("KUBECONFIG"):
        yield Cluster((), _images_of_registry())
        return
    folder = Path(os.environ.get("BATON_KUBERNETES_STATE", Path(tempfile.gettempdir()) / "baton-kubernetes"))
    images = _built_images()
    is_up = _NETWORK.exists()
    if not is_up:
        run([TOOLS / "up", folder, "2"], timeout_seconds=600)
    try:
        run([TOOLS / "load", folder, *images.values()], timeout_seconds=900)
        yield Cluster((str(folder / "k"),), images, folder, TOOLS)
    finally:
        if not is_up and not os.environ.get("BATON_KUBERNETES_KEEP"):
            run([TOOLS / "down", folder], timeout_seconds=300)


def _images_of_registry() -> Mapping[str, str]:
    """Return images that the cluster can pull, or has: by BATON_KUBERNETES_IMAGES, a prefix such as HOST/FOLDER."""
    prefix = os.environ.get("BATON_KUBERNETES_IMAGES", "localhost")
    return {target: f"{prefix}/baton-{target}:lab" for target in _TARGETS}


def _built_images() -> Mapping[str, str]:
    """Build what is not there, and return the images of the Docker engine."""
    run([TOOLS / "base-image", _BASE], timeout_seconds=_BUILD_SECONDS)
    images = {target: f"localhost/baton-{target}:lab" for target in _TARGETS}
    for target, name in images.items():
        arguments = ["--build-arg", f"PYTHON_IMAGE={_BASE}", "--target", target, "--tag", name]
        arguments += ["--file", str(ROOT / "docker" / "Dockerfile"), str(ROOT)]
        run(
            ["/usr/bin/docker", "build", "--network", "host", *arguments],
            timeout_seconds=_BUILD_SECONDS,
            environment={"DOCKER_BUILDKIT": "1"},
        )
    return images
