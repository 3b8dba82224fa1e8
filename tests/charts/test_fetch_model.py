"""The container that fetches a model does what the chart promises, as it is rendered."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from http_double import Answer, serving
from tests.charts.rendering import containers, find, manifests

_FILES = {"model/config.json": b"{}", "model/tokenizer.json": b"tokens"}


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _fetch(content: bytes, folder: Path, *, sha256: str = "", num_missing_bytes: int = 0) -> str:
    """Run the container's command for an archive of a server, and return what it says; empty: it has succeeded."""
    pod = find(manifests("everything"), "Deployment", "baton-gateway")["spec"]["template"]["spec"]
    (container,) = [each for each in containers(pod) if each["name"] == "fetch-model"]
    python, *flags = container["command"]
    script, *_ = container["args"]
    assert container["args"][1:] == ["https://a.example:8443/m.tar", "0" * 64, "/models/weights"]
    with serving(lambda _: Answer(200, content, num_missing_bytes)) as url:
        given = (f"{url}/m.tar", sha256 or hashlib.sha256(content).hexdigest(), str(folder))
        done = subprocess.run([sys.executable, *flags, script, *given], capture_output=True, text=True, timeout=60)
    assert python == "python"
    assert (done.returncode == 0) == (not done.stderr)
    return done.stderr


def test_an_archive_becomes_a_model_folder(tmp_path: Path) -> None:
    """The one folder at the archive's top becomes the folder that was asked for; at the next start it is kept."""
    assert _fetch(_archive(_FILES), tmp_path / "weights") == ""
    assert _fetch(b"another", tmp_path / "weights", sha256="0" * 64) == ""

    assert {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()} == {
        "config.json": b"{}",
        "tokenizer.json": b"tokens",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize(
    ("files", "changes", "problem"),
    [
        (_FILES, {"sha256": "0" * 64}, "expected 000"),
        ({"../outside": b"x", **_FILES}, {}, "outside the destination"),
        ({"readme": b"x"}, {}, "no config.json"),
        (_FILES, {"num_missing_bytes": 10}, "bytes early"),
    ],
)
def test_what_is_no_whole_model_leaves_nothing(
    tmp_path: Path, files: dict[str, bytes], changes: dict[str, str | int], problem: str
) -> None:
    """Another archive, one that writes beside its folder, none of a model, a transfer that breaks: said, and undone."""
    assert problem in _fetch(_archive(files), tmp_path / "weights", **changes)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
