"""baton.h2 and @grpc/grpc-js understand each other, whichever side calls."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.h2.call import ServerCall
from baton.h2.status import CallError, Code
from h2.peers import PATH, Listener, connected, serving
from h2.test_server import pattern, sizes_asked

_SOURCE = Path(__file__).parent / "node"
_INSTALL_SECONDS, _RUN_SECONDS = 120, 60
_SIZES = (0, 1, 16384, 65535, 3_000_003)
_QUESTION = " ".join(map(str, _SIZES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the script and its packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("stream_bytes.js", "package.json", "package-lock.json"):
        shutil.copy(_SOURCE / name, folder)
    command = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the script's packages: {installed.stderr.strip()[-300:]}")
    return folder


def test_node_receives_a_stream(folder: Path) -> None:
    """Messages larger than windows, metadata, and a status with details."""

    def answer(call: ServerCall) -> None:
        assert call.metadata["x-bin"] == b"\xff\x00\x01"
        assert call.remaining_seconds() is not None
        sizes_asked(call)
        raise CallError(Code.NOT_FOUND, "Größe 100%", b"\x00\x01\xff")

    with serving(answer) as port:
        command = ("node", "stream_bytes.js", "receive", f"127.0.0.1:{port}", _QUESTION)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_RUN_SECONDS)

    assert done.stderr == ""
    assert json.loads(done.stdout) == {
        "messages": [{"size": size, "isRight": True} for size in _SIZES],
        "code": 5,
        "message": "Größe 100%",
        "details": ["0001ff"],
    }


@pytest.fixture
def node_port(folder: Path) -> Iterator[int]:
    """Return the port of a server in Node."""
    command = ("node", "stream_bytes.js", "serve")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_node_sends_a_stream(node_port: int) -> None:
    """The same, the other way round; twice, so that header compression has something to refer to."""
    with connected(node_port) as connection:
        for _ in range(2):
            listener = Listener()
            call = connection.call(PATH, _QUESTION.encode(), listener, metadata={"x": "y"}, timeout_seconds=20)

            assert listener.result() == (Code.DATA_LOSS, "Größe 100%", b"\x00\x01\xff")
            assert listener.messages == [pattern(size) for size in _SIZES]
            call.release(sum(_SIZES))
