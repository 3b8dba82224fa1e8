"""The generated code in services/baton/v1 and internal/v1 is what `make protos` makes of protos/."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from house.repository import GENERATED, ROOT, SERVICES


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    """Running the commands of `make protos` again gives the committed files, byte for byte."""
    for command in _protoc_commands(tmp_path):
        subprocess.run(command, cwd=ROOT, check=True, timeout=300)

    for folder in GENERATED:
        made = tmp_path / folder.relative_to(SERVICES)
        assert _contents(made) == _contents(folder), "run `make protos`"


def _protoc_commands(out: Path) -> list[list[str]]:
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "grpc_tools.protoc" in line]
    assert lines, "the Makefile has no protoc command"
    return [_expanded(line.strip().removeprefix("@"), out) for line in lines]


def _expanded(line: str, out: Path) -> list[str]:
    words: list[str] = []
    for word in shlex.split(line.replace("$(BIN)/python", shlex.quote(sys.executable))):
        if "*" in word:
            words += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(word))
        elif word.endswith("_out=services"):
            words.append(f"{word.removesuffix('services')}{out}")
        else:
            words.append(word)
    return words


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*_pb2*.py*"))}
