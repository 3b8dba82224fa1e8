"""The documents, and the docstrings, name files and modules that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from house.repository import PACKAGE, ROOT, TESTS, sources_of, tracked_files

_FILE = re.compile(r"`([a-z0-9_./-]+\.(?:py|proto|toml|md|txt|json))`")
_MODULE = re.compile(r"`(?:python -m )?((?:baton|bench|charts|docker)(?:\.[a-z_]\w*)+)[^`]*`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_NOT_IN_THE_TREE = {"utils.py", "config.json", "tokenizer.json", "structured_outputs.json", "/openapi.json"}
"""Names that stand for something else: a file that must not exist, files of a checkpoint, a field, a page."""
_HISTORY = {"docs/renames.md"}
"""Documents of names that are gone."""
_FIELDS = "docs/dialects.md"
"""Tells of fields: the part `baton` of an answer is no package."""


def _documents() -> list[str]:
    files = [path.relative_to(ROOT) for path in tracked_files() if path.suffix == ".md"]
    return sorted(str(path) for path in files if str(path) not in _HISTORY and path.parts[0] not in ("charts", "tests"))


@pytest.mark.parametrize("document", _documents())
def test_named_files_exist(document: str) -> None:
    """Every path in code marks is the end of a tracked path, every link a file."""
    path = ROOT / document
    text = path.read_text()

    assert list(_missing_files(text)) == []
    assert [link for link in _LINK.findall(text) if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("document", [name for name in _documents() if name != _FIELDS])
def test_modules_named_in_documents_exist(document: str) -> None:
    """`baton.kv.pool`, alone or with a name that the module has."""
    assert list(_missing_modules((ROOT / document).read_text())) == []


def test_files_and_modules_named_in_docstrings_exist() -> None:
    """What a docstring puts into code marks is found under that name."""
    missing = {
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for top in (PACKAGE, ROOT / "bench", ROOT / "docker", ROOT / "charts", TESTS)
        for path in sources_of(top)
        for line, text in _strings(path)
        for name in (*_missing_files(text), *_missing_modules(text))
    }

    assert missing == set()


def _missing_files(text: str) -> Iterator[str]:
    for name in _FILE.findall(text):
        if name not in _NOT_IN_THE_TREE and not any(path.endswith(f"/{name}") for path in _tracked_paths()):
            yield name


def _missing_modules(text: str) -> Iterator[str]:
    for name in _MODULE.findall(text):
        is_metric = f'"{name}"' in _telemetry()
        if not name.startswith(("baton.v1", "baton.internal.v1")) and not is_metric and not _is_known(name.split(".")):
            yield name


def _is_known(parts: Sequence[str]) -> bool:
    """Return whether a dotted name is a module, or a module's name and what follows is said in it."""
    root = ROOT / "services" if parts[0] == "baton" else ROOT
    for length in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:length])
        home = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if home.is_file():
            return length == len(parts) or re.search(rf"\b{parts[length]}\b", home.read_text()) is not None
    return False


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, those of its constants and fields too, with their lines."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


@cache
def _telemetry() -> str:
    """Return the sources in which metrics and spans have their names."""
    return "".join(path.read_text() for path in sources_of(PACKAGE / "telemetry"))


@cache
def _tracked_paths() -> tuple[str, ...]:
    return tuple(f"/{path.relative_to(ROOT)}" for path in tracked_files())
