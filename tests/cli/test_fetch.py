"""`baton fetch`."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.cli.fetch import FetchError, command, fetch
from baton.errors import ConfigurationError
from http_double import Answer, serving

_FILES = {"model/config.json": b"{}", "model/tokenizer.json": b"tokens"}


def test_an_archive_becomes_a_model_folder(tmp_path: Path) -> None:
    """The one folder at the archive's top becomes the folder that was asked for."""
    archive = _archive(_FILES)

    with _serving(archive) as url:
        fetch(url, _digest(archive), tmp_path / "weights")

    assert {path.name: path.read_bytes() for path in (tmp_path / "weights").iterdir()} == {
        "config.json": b"{}",
        "tokenizer.json": b"tokens",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_wrong_digest_leaves_nothing(tmp_path: Path) -> None:
    """An archive that is not the one asked for is not unpacked, and the message says what it is."""
    archive = _archive(_FILES)

    with _serving(archive) as url, pytest.raises(FetchError, match=f"has SHA-256 {_digest(archive)}, expected 000"):
        fetch(url, "0" * 64, tmp_path / "weights")

    assert list(tmp_path.iterdir()) == []


def test_a_file_outside_of_the_archive_is_refused(tmp_path: Path) -> None:
    """An archive cannot write beside its folder."""
    archive = _archive({"../outside": b"x", **_FILES})

    with _serving(archive) as url, pytest.raises(FetchError, match="outside the destination"):
        fetch(url, _digest(archive), tmp_path / "in" / "weights")

    assert list((tmp_path / "in").iterdir()) == []


def test_an_archive_without_a_model_is_refused(tmp_path: Path) -> None:
    """What has no config.json is no model folder."""
    archive = _archive({"readme": b"x"})

    with _serving(archive) as url, pytest.raises(FetchError, match=r"no config\.json"):
        fetch(url, _digest(archive), tmp_path / "weights")


def test_a_transfer_that_breaks_is_refused(tmp_path: Path) -> None:
    """A server that sends less than it announced has failed."""
    archive = _archive(_FILES)

    with _serving(archive, num_missing_bytes=10) as url, pytest.raises(FetchError, match=r"early|cannot be read"):
        fetch(url, _digest(archive), tmp_path / "weights")


def test_a_server_that_is_away_is_named(tmp_path: Path) -> None:
    """The message holds the URL."""
    with pytest.raises(FetchError, match=r"http://127\.0\.0\.1:1/x cannot be read"):
        fetch("http://127.0.0.1:1/x", "0" * 64, tmp_path / "weights")


def test_a_model_that_is_there_is_kept(tmp_path: Path) -> None:
    """A container that starts again fetches nothing."""
    (tmp_path / "config.json").write_text("{}")

    command("http://127.0.0.1:1/x", "0" * 64, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("url", "sha256", "problem"),
    [
        ("http://127.0.0.1:1/x", "abc", "--sha256: expected 64 hexadecimal digits"),
        ("file:///etc/passwd", "0" * 64, "URL: expected one that begins with https://"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path: Path, url: str, sha256: str, problem: str) -> None:
    """Each message names the argument."""
    with pytest.raises(ConfigurationError, match=problem):
        command(url, sha256, tmp_path / "weights")


def _archive(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _serving(content: bytes, *, num_missing_bytes: int = 0) -> Iterator[str]:
    with serving(lambda _: Answer(200, content, num_missing_bytes)) as url:
        yield f"{url}/model.tar.gz"
