"""The documents name files that exist."""

from __future__ import annotations

import re

import pytest

from house.repository import ROOT, tracked_files

_FILE = re.compile(r"`([a-z0-9_./-]+\.(?:py|proto|toml|md|txt|json))`")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md")),
]
_NOT_IN_THE_TREE = {"utils.py", "config.json", "tokenizer.json", "/openapi.json"}
"""Names that stand for something else: a file that must not exist, files of a checkpoint, a page of the gateway."""


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    """Every path in code marks is the end of a tracked path, every link a file."""
    text = (ROOT / document).read_text()
    paths = [f"/{path.relative_to(ROOT)}" for path in tracked_files()]
    missing = [
        name
        for name in _FILE.findall(text)
        if name not in _NOT_IN_THE_TREE and not any(path.endswith(f"/{name}") for path in paths)
    ]
    broken = [link for link in _LINK.findall(text) if not (ROOT / document).parent.joinpath(link).exists()]

    assert (missing, broken) == ([], [])
