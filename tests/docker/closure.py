"""Tells which of the imports in Baton's code fail; runs inside an image, and needs nothing but Python.

python closure.py PACKAGE_FOLDER prints a JSON object: the statement of each import of another package that fails, at
the top of a module or within a function, and the files that hold it.
"""

import ast
import json
import sys
import warnings
from pathlib import Path

ELSEWHERE = ("engine/runners/mlx/", "demo/")
NOT_RUN = {
    "control": (*ELSEWHERE, "engine/runners/torch/", "node/sensors/nvidia.py"),
    "cpu": (*ELSEWHERE, "engine/runners/torch/ops/cuda/", "gateway/"),
    "cuda": (*ELSEWHERE, "gateway/"),
}
"""What no process of an image runs, as beginnings of paths below Baton's package."""


def foreign_imports(folder: Path) -> dict[str, list[str]]:
    """Return every import of a package that is neither Python's nor Baton's, and the files that hold it."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for statement, package in _statements(node):
                if package not in sys.stdlib_module_names and package not in ("baton", "bench", "__future__"):
                    files = found.setdefault(statement, [])
                    name = path.relative_to(folder).as_posix()
                    files += [] if name in files else [name]
    return found


def failing(statements: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return those that fail here."""
    failed = {}
    for statement, files in statements.items():
        try:
            exec(statement, {})
        except ImportError:
            failed[statement] = files
    return failed


def unmet_imports(name: str, failing: dict[str, list[str]]) -> list[str]:
    """Return those of the failing imports that a process of an image may meet.

    Args:
        name: The image.
        failing: Files of Baton's package by the statement that they hold.
    """
    return [
        statement for statement, files in failing.items() if not all(file.startswith(NOT_RUN[name]) for file in files)
    ]


def _statements(node: ast.AST) -> list[tuple[str, str]]:
    if isinstance(node, ast.Import):
        return [(f"import {each.name}", each.name.partition(".")[0]) for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        package = node.module.partition(".")[0]
        return [(f"from {node.module} import {each.name}", package) for each in node.names]
    return []


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(failing(foreign_imports(Path(sys.argv[1])))))
