"""The benchmark is a client like any other."""

from __future__ import annotations

import ast
from pathlib import Path

from house.repository import ROOT


def test_bench_imports_nothing_of_baton_but_its_protos() -> None:
    """What bench/ can measure, a client in another language could measure too; bench/microbench alone looks inside."""
    imported = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "bench").rglob("*.py"))
        for name in _imports_of(path)
        if path.relative_to(ROOT / "bench").parts[0] != "microbench"
        and name.split(".")[0] == "baton"
        and not f"{name}.".startswith(("baton.v1.", "baton.internal.v1."))
    }

    assert imported == set()


def _imports_of(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names
