"""What machines that join shall run."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.errors import ConfigurationError, NotFoundError
from baton.router.machine_assignments import MachineAssignment, assigned, read_assignments


def _read(tmp_path: Path, text: str) -> list[MachineAssignment]:
    path = tmp_path / "assignments.toml"
    path.write_text(text)
    return list(read_assignments(path))


def test_the_first_pattern_that_matches_decides(tmp_path: Path) -> None:
    """A table without a pattern is for all; settings become text."""
    mac = '[[node]]\nnode_id = "mac-*"\nrole = "decode"\nnum-blocks = 64\nshare_prompts = false\n'
    text = mac + '[[node]]\nrole = "prefill"'
    assignments = _read(tmp_path, text)

    assert assigned(assignments, "mac-7") == MachineAssignment(
        "mac-*", "decode", {"num_blocks": "64", "share_prompts": "false"}
    )
    assert assigned(assignments, "tower").role == "prefill"
    with pytest.raises(NotFoundError, match=r"'tower'.*'mac-\*'"):
        assigned(assignments[:1], "tower")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[node]]", r"node\[0\]\.role: expected one of prefill, decode, worker"),
        ('[[node]]\nrole = "decode"\nnode_id = 3', r"node\[0\]\.node_id"),
        ('[[node]]\nrole = "decode"\ntls_ca_file = "x"', r"node\[0\]\.tls_ca_file: follows from joining"),
        ('[[node]]\nrole = "decode"\ndtype = ["a"]', r"node\[0\]\.dtype: expected text"),
        ("[node]", "unknown key node"),
        ("nodes = 1", "unknown key nodes"),
        ("[[", "assignments.toml"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, problem: str) -> None:
    """The message says which key, and what was expected."""
    with pytest.raises(ConfigurationError, match=problem):
        _read(tmp_path, text)
