"""A gRPC client in C++, generated from the .proto files by Debian's compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from system.cluster import Cluster

_FOLDER = Path(__file__).parents[1] / "cpp"
_NEEDED = ("make", "g++", "protoc", "grpc_cpp_plugin", "pkg-config")
_BUILD_SECONDS, _RUN_SECONDS = 300, 180


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client; skip where a compiler or gRPC for C++ is missing."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    build = tmp_path_factory.mktemp("cpp")
    command = ("make", f"BUILD={build}")
    made = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, timeout=_BUILD_SECONDS)
    assert made.returncode == 0, made.stderr[-2000:]
    return build / "generate"


def _generate(client: Path, cluster: Cluster, max_tokens: int) -> subprocess.CompletedProcess[str]:
    command = (str(client), cluster.grpc_address, "What is", str(max_tokens))
    return subprocess.run(command, capture_output=True, text=True, timeout=_RUN_SECONDS)


def test_a_client_in_cpp_streams_a_generation(client: Path, demo_cluster: Cluster) -> None:
    """Text, then usage and placement."""
    done = _generate(client, demo_cluster, 8)

    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "completion_token_count: 8" in done.stderr or "FINISH_REASON_STOP" in done.stderr
    assert 'decode_node_id: "decode-0"' in done.stderr


def test_a_client_in_cpp_is_told_what_was_wrong(client: Path, demo_cluster: Cluster) -> None:
    """INVALID_ARGUMENT is 3 in every language."""
    done = _generate(client, demo_cluster, -1)

    assert done.returncode == 1
    assert "error 3: max_token_count" in done.stderr
