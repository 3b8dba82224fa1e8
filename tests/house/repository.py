"""Where the parts of the repository are, and what belongs to it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"
SERVICES = ROOT / "services"
PACKAGE = SERVICES / "baton"
GENERATED = (PACKAGE / "v1", PACKAGE / "internal" / "v1")
TESTS = ROOT / "tests"


def tracked_files() -> list[Path]:
    """Return the files that git knows and that exist, generated ones included."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, timeout=300)
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def sources() -> Iterator[Path]:
    """Yield the modules of Baton that people write, in the order of their paths."""
    yield from sources_of(PACKAGE)


def all_sources() -> Iterator[Path]:
    """Yield the modules that people write in Baton and around it: benchmarks, images, charts."""
    for folder in (PACKAGE, ROOT / "bench", ROOT / "docker", ROOT / "charts"):
        yield from sources_of(folder)


def sources_of(folder: Path) -> Iterator[Path]:
    """Yield the modules below a folder that people write, in the order of their paths."""
    for path in sorted(folder.rglob("*.py")):
        if not set(GENERATED) & set(path.parents):
            yield path


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods of a module, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
