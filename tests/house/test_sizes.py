"""The size of files and functions."""

from __future__ import annotations

import ast

from house.repository import ROOT, all_sources, functions_of

_MAX_FILE_LINES = 400
_MAX_FUNCTION_LINES = 60


def test_no_file_is_longer_than_one_idea() -> None:
    """Past 400 lines a file holds two ideas."""
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in all_sources()}

    assert {name: size for name, size in sizes.items() if size > _MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_one_thing() -> None:
    """Past 60 lines, docstring aside, a function does two things."""
    sizes = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": _num_lines(function)
        for path in all_sources()
        for function in functions_of(path)
    }

    assert {name: size for name, size in sizes.items() if size > _MAX_FUNCTION_LINES} == {}


def _num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    end = function.end_lineno or function.lineno
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    documented = (docstring.end_lineno or 0) - docstring.lineno + 1 if docstring else 0
    return end - function.lineno + 1 - documented
