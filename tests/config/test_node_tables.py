"""The `[[node]]` tables of a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.config.node_tables import read_tables, setting_text
from baton.errors import ConfigurationError


def test_tables_come_by_how_errors_name_them(tmp_path: Path) -> None:
    """In the order of the file."""
    path = tmp_path / "nodes.toml"
    path.write_text('[[node]]\nrole = "decode"\n[[node]]\nrole = "prefill"\n')

    assert list(read_tables(path, "n").items()) == [
        ("n: node[0]", {"role": "decode"}),
        ("n: node[1]", {"role": "prefill"}),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("[[nod]]", "unknown key nod"), ("[node]\nrole = 1", "unknown key node"), ("[[", "nodes.toml: ")],
)
def test_a_file_of_anything_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The error names the file and the key."""
    path = tmp_path / "nodes.toml"
    path.write_text(text)

    with pytest.raises(ConfigurationError, match=f"nodes.toml: .*{message}|{message}"):
        read_tables(path, str(path))


def test_values_are_written_as_flags_have_them() -> None:
    """Truth in lower case."""
    assert [setting_text(value) for value in (True, 512, 0.5, "auto")] == ["true", "512", "0.5", "auto"]
