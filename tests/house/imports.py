"""Which module loads which others, and the circles that this makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from house.repository import sources_of


def imports_within(folder: Path, root: Path, *, in_functions: bool) -> Mapping[str, frozenset[str]]:
    """Return, per module below a folder, the modules below it that the module imports, those for types alone aside.

    Args:
        folder: A package, or what holds packages.
        root: Folder from which modules are imported.
        in_functions: Whether imports within functions count.
    """
    modules = {_dotted(path.relative_to(root)): path for path in sources_of(folder)}
    return {
        name: frozenset(_module_of(each, modules) for each in _imported(path, in_functions=in_functions))
        & modules.keys() - {name}
        for name, path in modules.items()
    }


def circles_in(imports: Mapping[str, frozenset[str]]) -> list[Sequence[str]]:
    """Return the groups of modules that reach each other, each group sorted."""
    reached = {name: _reached_from(name, imports) for name in imports}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in imports
        if name in reached[name]
    }
    return sorted(groups)


def _reached_from(name: str, imports: Mapping[str, frozenset[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = list(imports[name])
    while ahead:
        following = ahead.pop()
        if following not in seen:
            seen.add(following)
            ahead += imports[following]
    return seen


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module_of(name: str, modules: Mapping[str, Path]) -> str:
    """Return the module that has a name, `package.module.Class` being one of a module."""
    return name if name in modules else name.rpartition(".")[0]


def _imported(path: Path, *, in_functions: bool) -> Iterator[str]:
    """Yield what a module imports: modules, and modules with a name of theirs."""
    ahead: list[ast.AST] = [ast.parse(path.read_text())]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            ahead += node.orelse
        elif in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ahead += ast.iter_child_nodes(node)
