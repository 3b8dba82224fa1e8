"""Removes from a virtual environment what Baton does not load, for images: `python slim.py VENV` prints megabytes."""

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

UNUSED = (
    # Nothing is installed or compiled in a running container.
    "pip",
    "pip-*.dist-info",
    "setuptools",
    "setuptools-*.dist-info",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
    "**/__pycache__",
    "**/tests",
    # What type checkers and compilers read.
    "**/*.pyi",
    "**/*.pxd",
    "numpy/_core/include",
    # Models are not fetched from a hub by these services.
    "hf_xet",
    "hf_xet-*.dist-info",
)
"""Patterns below site-packages."""

UNUSED_WITHOUT_TORCH = tuple(
    f"transformers/models/*/{prefix}_*.py"
    for prefix in ("modeling", "modular", "image_processing", "video_processing", "feature_extraction", "convert")
)
"""Patterns below site-packages that only a framework could use; a gateway takes its tokenizer from there, no model."""

USED = ("transformers/models/auto",)
"""Folders below site-packages that stay whole: AutoTokenizer imports the tables of models there."""

UNUSED_SCRIPTS = ("pip*", "wheel*", "Activate.ps1", "activate*")
"""Patterns below the folder of commands."""

STRIPPED = ("cryptography", "grpc", "httptools", "regex", "safetensors", "tokenizers", "uvloop", "yaml", "zeroconf")
"""Packages whose libraries carry symbols. Libraries that bring others along in a folder NAME.libs do not bear it."""


def remove_unused(site_packages: Path) -> None:
    """Remove what the patterns name, and the debugging symbols of libraries."""
    has_torch = (site_packages / "torch").is_dir()
    remove(site_packages, (*UNUSED, *(() if has_torch else UNUSED_WITHOUT_TORCH)))
    for package in STRIPPED:
        for path in site_packages.glob(f"{package}/**/*.so"):
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def remove(folder: Path, patterns: Iterable[str]) -> None:
    """Remove the files and folders below a folder that patterns name."""
    for pattern in patterns:
        for path in list(folder.glob(pattern)):
            if any(path.is_relative_to(folder / used) for used in USED) and path.name != "__pycache__":
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def megabytes(folder: Path) -> float:
    """Return the size of all files of a folder, in 10^6 bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) / 1e6


if __name__ == "__main__":
    environment = Path(sys.argv[1])
    (folder,) = environment.glob("lib/python3.*/site-packages")
    before = megabytes(environment)
    remove_unused(folder)
    remove(environment / "bin", UNUSED_SCRIPTS)
    print(f"{environment}: {before:.0f} MB, less what is not used {megabytes(environment):.0f} MB")
