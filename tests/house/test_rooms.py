"""The rooms of the house: as many modules as a newcomer tells apart, no slivers, no circles, one class per name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from house.imports import circles_in, imports_within
from house.repository import PACKAGE, ROOT, all_sources, sources, sources_of

_MAX_MODULES = 18
_MIN_LINES = 25

_SHORT: Mapping[str, str] = {
    "services/baton/cli/__main__.py": "what `python -m baton.cli` runs",
    "services/baton/engine/runners/torch/tensor_parallel/__main__.py": "what `python -m` runs as a rank",
}
"""Modules under 25 lines, by path, each with the reason why it is not part of another."""


@pytest.mark.parametrize("top", ["services/baton", "bench", "docker", "charts", "tests"])
def test_a_folder_holds_what_a_newcomer_can_tell_apart(top: str) -> None:
    """More than 18 modules want to be several folders; `runners/*/models/` alone has one per family of models."""
    sizes: dict[str, int] = defaultdict(int)
    for path in _modules(top):
        sizes[str(path.parent.relative_to(ROOT))] += 1
    crowded = {room: size for room, size in sizes.items() if size > _MAX_MODULES and not _holds_model_families(room)}

    assert crowded == {}


def test_no_module_is_a_sliver() -> None:
    """A module under 25 lines belongs to what it is read with, unless the list of this gate says why not."""
    slivers = {
        str(path.relative_to(ROOT))
        for path in all_sources()
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < _MIN_LINES
    }

    assert slivers == _SHORT.keys()


def test_no_modules_of_services_load_each_other_in_a_circle() -> None:
    """What is imported when a module is loaded never leads back to it."""
    assert circles_in(imports_within(PACKAGE, ROOT / "services", in_functions=False)) == []


@pytest.mark.parametrize("top", ["bench", "charts", "docker"])
def test_no_modules_of_tools_import_each_other_in_a_circle(top: str) -> None:
    """Not even within functions: there is nothing to load late but foreign packages."""
    assert circles_in(imports_within(ROOT / top, ROOT, in_functions=True)) == []


def test_no_two_classes_have_one_name() -> None:
    """Who searches for a public class of Baton finds it, not its namesake in another room."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        for name in _public_classes(path):
            homes[name].append(str(path.relative_to(PACKAGE)))

    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def _modules(top: str) -> Iterator[Path]:
    return (path for path in sources_of(ROOT / top) if path.name != "__init__.py")


def _holds_model_families(room: str) -> bool:
    parts = Path(room).parts
    return parts[-1] == "models" and "runners" in parts


def _public_classes(path: Path) -> Sequence[str]:
    body = ast.parse(path.read_text()).body
    return [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
