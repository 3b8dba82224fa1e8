"""The shape of the tree: packages say what they hold, tests mirror them, no file is named for nothing."""

from __future__ import annotations

import ast

from house.repository import GENERATED, PACKAGE, ROOT, TESTS, sources

_ACROSS_PACKAGES = {"house", "exactness", "system", "kubernetes", "clients", "attacks", "mutants", "gpu"}
"""Test folders that mirror no package: the repository, equality with transformers, processes, Kubernetes, clients, what
an audit did to a deployment, mistakes that tests must catch."""

_NAMES_OF_NO_IDEA = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}


def test_every_package_says_what_it_holds() -> None:
    """Each folder with modules has an __init__.py that begins with a docstring."""
    folders = {path.parent for path in sources()} | set(GENERATED)
    silent = [
        str(folder.relative_to(ROOT))
        for folder in sorted(folders)
        if not (folder / "__init__.py").is_file()
        or ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) is None
    ]

    assert silent == []


def test_test_folders_mirror_packages() -> None:
    """tests/a/b tests services/baton/a/b, and tests/bench tests bench."""
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    strangers = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts
        and folder.parts[0] not in _ACROSS_PACKAGES
        and not any((parent / folder / "__init__.py").is_file() for parent in (PACKAGE, ROOT))
    ]

    assert strangers == []


def test_no_file_is_named_for_no_idea() -> None:
    """A file is named by the noun it holds; utils, helpers and common hold none."""
    nameless = [path for path in [*sources(), *TESTS.rglob("*.py")] if path.name in _NAMES_OF_NO_IDEA]

    assert nameless == []
