"""Builds the images without a builder: every step of the Dockerfile, in bare root file systems of the same release.

PYTHONPATH=tests:. python -m images.try_build [cpu] [cuda] [--folder DIR] [--base DIR]

Needs Linux, root, mmdebstrap or debootstrap, and this machine's pip. What each stage's RUN and COPY do is done, as a
builder would; the one difference is the base, which Debian's archive gives instead of a registry. Each image is then
run as its user on a read-only root, the pods of an example of the chart are started from it, and its size is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from images.bare_base import make_base, name_python
from images.dockerfile import read_stages
from images.image_trial import check_confined, failing_imports, run_unprivileged, size_of, tools_in
from images.machine_pip import files_named, pip_environment
from images.pod_trial import try_pods
from images.stage_trial import Image, StageTrial

_ROOT = Path(__file__).parents[2]
_DOCKERFILE = _ROOT / "docker" / "Dockerfile"
_EXAMPLES = {"control": "minimal", "cpu": "cpu-only", "cuda": "cpu-only"}
"""Example of the chart whose pods are started once an image is there; where no GPU is, `cuda` computes on the CPU."""
_ELSEWHERE = ("engine/runners/mlx/", "demo/")
NOT_RUN = {
    "control": (*_ELSEWHERE, "engine/runners/torch/", "node/sensors/nvidia.py"),
    "cpu": (*_ELSEWHERE, "engine/runners/torch/ops/cuda/", "gateway/"),
    "cuda": (*_ELSEWHERE, "gateway/"),
}
"""What no process of an image runs, as beginnings of paths below Baton's package."""
MAX_CONTROL_MEGABYTES = 200.0
"""Bound of what the control image adds to its base."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, run and measure; return 0 if all that must hold does."""
    options = _parser().parse_args(arguments)
    stages = read_stages(_DOCKERFILE)
    (pinned,) = {stage.base for stage in stages} - {stage.name for stage in stages}
    base = _base(options.base, pinned, options.folder)
    pip = dict(pip_environment())
    trial = StageTrial(
        stages,
        context=_ROOT,
        folder=options.folder,
        base=base,
        environment=pip,
        binds=files_named(pip),
        build_arguments=pip,
    )
    images = {name: trial.build(name) for name in ["control", *options.targets]}
    report = {name: _tried(name, image, images["control"], base) for name, image in images.items()}
    print(json.dumps({"base": pinned, "images": report}, indent=1))
    return 0 if size_of(images["control"], base).added <= MAX_CONTROL_MEGABYTES else 1


def _tried(name: str, image: Image, control: Image, base: Path) -> dict[str, object]:
    """Return what is told of an image that has passed.

    Raises:
        subprocess.CalledProcessError: If it cannot run.
        RuntimeError: If it brings tools, or its pods do not answer.
    """
    if tools := tools_in(image):
        raise RuntimeError(f"{name}: brings {', '.join(tools)}")
    check_confined(image)
    if unmet := unmet_imports(name, failing_imports(image)):
        raise RuntimeError(f"{name}: its processes lack {', '.join(unmet)}")
    help_text = run_unprivileged(image, [*image.entrypoint, "--help"])
    packages = (image.root / image.labels["baton.packages"].lstrip("/")).read_text("utf-8").splitlines()
    size = size_of(image, base)
    # The examples name the images control and cpu; the one under trial stands where pools compute.
    answer = try_pods(_EXAMPLES[name], {"control": control, "cpu": image})
    return {
        "packages_megabytes": round(size.packages, 1),
        "added_megabytes": round(size.added, 1),
        "compressed_megabytes": round(size.compressed, 1),
        "num_packages": len(packages),
        "user": image.user,
        "help": help_text.strip().splitlines()[0].strip(),
        "example": _EXAMPLES[name],
        "answer": json.loads(answer)["usage"],
    }


def unmet_imports(name: str, failing: Mapping[str, Sequence[str]]) -> list[str]:
    """Return those of the failing imports that a process of an image may meet.

    Args:
        name: The image.
        failing: Files of Baton's package by the statement that they hold.
    """
    return [
        statement for statement, files in failing.items() if not all(file.startswith(NOT_RUN[name]) for file in files)
    ]


def _base(given: Path | None, pinned: str, folder: Path) -> Path:
    base: Path = given or folder / "debian"
    if not base.exists():
        base.parent.mkdir(parents=True, exist_ok=True)
        make_base(pinned, base)
    name_python(base, ".".join(pinned.partition(":")[2].split(".")[:2]))
    return base


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", help="images to build beside control", metavar="TARGET")
    parser.add_argument(
        "--folder", type=Path, default=Path("/var/tmp/baton-images"), help="where file systems are made"
    )
    parser.add_argument("--base", type=Path, help="a bare root file system made before; default: made in the folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
