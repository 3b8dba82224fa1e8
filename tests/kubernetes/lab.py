"""Where the cluster comes from: KUBECONFIG's, or one that is brought up here with images that are built here."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.cluster import Cluster, run

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("BATON_KUBERNETES_LAB", ROOT.parent / "shared" / "kubernetes"))
"""Scripts that bring a cluster up on this machine; their README says what they need."""
DOCKER = "/usr/bin/docker"
"""The client that goes with Debian's engine."""
_BASE = "python:lab"
_TAG = os.environ.get("BATON_KUBERNETES_TAG", "lab")
"""Of the images: trees that share a cluster have one each."""
_TARGETS = tuple(os.environ.get("BATON_KUBERNETES_TARGETS", "control,cpu").split(","))
"""Images that are built, or looked for."""
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
        _load(folder, images.values())
        yield Cluster((str(folder / "k"),), images, folder, TOOLS)
    finally:
        if not is_up and not os.environ.get("BATON_KUBERNETES_KEEP"):
            run([TOOLS / "down", folder], timeout_seconds=300)


def _images_of_registry() -> Mapping[str, str]:
    """Return images that the cluster can pull, or has: by BATON_KUBERNETES_IMAGES, a prefix such as HOST/FOLDER."""
    prefix = os.environ.get("BATON_KUBERNETES_IMAGES", "localhost")
    return {target: f"{prefix}/baton-{target}:{_TAG}" for target in _TARGETS}


def _load(folder: Path, images: Iterable[str]) -> None:
    """Copy images into the nodes, but those that they have."""
    record = folder / "n1" / "loaded.json"
    known: dict[str, str] = json.loads(record.read_text("utf-8")) if record.exists() else {}
    for name in images:
        built = run([DOCKER, "image", "inspect", name, "--format", "{{.Id}}"]).strip()
        if known.get(name) != built:
            run([TOOLS / "load", folder, name], timeout_seconds=900)
            known[name] = built
    record.write_text(json.dumps(known), "utf-8")


def _built_images() -> Mapping[str, str]:
    """Build what is not there, and return the images of the Docker engine."""
    run([TOOLS / "base-image", _BASE], timeout_seconds=_BUILD_SECONDS)
    images = {target: f"localhost/baton-{target}:{_TAG}" for target in _TARGETS}
    for target, name in images.items():
        arguments = ["--build-arg", f"PYTHON_IMAGE={_BASE}", "--target", target, "--tag", name]
        arguments += ["--file", str(ROOT / "docker" / "Dockerfile"), str(ROOT)]
        run(
            [DOCKER, "build", "--network", "host", *arguments],
            timeout_seconds=_BUILD_SECONDS,
            environment={"DOCKER_BUILDKIT": "1"},
        )
    return images
