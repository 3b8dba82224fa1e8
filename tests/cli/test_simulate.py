"""`baton simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.commands import baton

_LINE = {"arrival_seconds": 0.0, "prompt_token_ids": [1, 2, 3], "output_token_ids": [4, 5]}


def _write(folder: Path, *lines: object) -> str:
    path = folder / "load.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_pass_takes_what_the_note_says(tmp_path: Path) -> None:
    """Llama-65B on an A100: 3 * 3 / (312 * 1500) + 0.06 s, then 4 * 1 / (312 * 1500) + 0.06 s."""
    result = baton(
        "simulate", _write(tmp_path, _LINE), "--shape", "llama-65b", "--time-model", "note",
        "--weight-bytes", "120000000000",
    )  # fmt: skip

    outcome = json.loads(result.stdout)
    assert outcome["first_token_seconds"] == pytest.approx(9 / 468_000 + 0.06)
    assert outcome["finished_seconds"] == pytest.approx(13 / 468_000 + 0.12)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"arrival_seconds": -1}, "arrival_seconds"),
        ({"output_token_ids": ["a"]}, "output_token_ids"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, change: dict[str, object], word: str) -> None:
    """Status 2, file, number of the line, field."""
    result = baton("simulate", _write(tmp_path, _LINE, _LINE | change))

    assert result.returncode == 2
    assert f"load.jsonl:2: {word}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("flag", ["--shape", "--hardware", "--time-model"])
def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path, flag: str) -> None:
    """Status 2, and the flag is named."""
    result = baton("simulate", _write(tmp_path, _LINE), flag, "nothing")

    assert result.returncode == 2
    assert f"{flag}: expected one of " in result.stderr
