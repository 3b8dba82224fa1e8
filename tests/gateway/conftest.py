"""Fixtures of the gateway's tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from baton.gateway.http.connection import HttpConnection
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import FakeCluster, Loop
from text.tokenizer_folders import byte_level, save


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a byte-level tokenizer."""
    return save(byte_level(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Run an event loop in a thread."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster of two decode nodes, not yet started."""
    return FakeCluster(model_dir)


@pytest.fixture
def gateway(loop: Loop, cluster: FakeCluster) -> Iterator[RunningGateway]:
    """Run the cluster and a gateway with ordinary settings."""
    with loop.running(cluster) as running:
        yield running


@pytest.fixture
def small_send_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel hold little of what a client does not take, not the megabytes that it would."""
    begin = HttpConnection.connection_made

    def begin_small(connection: HttpConnection, transport: asyncio.BaseTransport) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        begin(connection, transport)

    monkeypatch.setattr(HttpConnection, "connection_made", begin_small)


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    """Return the official client."""
    url = f"http://127.0.0.1:{gateway.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client
