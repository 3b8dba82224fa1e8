"""A watch that nobody waits for any more."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest
import trustme

from baton.discovery.api_server import ApiServer
from baton.discovery.endpoints import ServiceTarget
from baton.discovery.kubernetes_api import KubernetesEndpointApi
from tcp_server import listening

TIMEOUT_SECONDS = 30.0
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answer", [b"", HEAD], ids=["before its answer", "amid its answer"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_watch_that_is_given_up_is_cut_off(scheme: str, answer: bytes, tmp_path: Path) -> None:
    """Its socket and its thread would stay until the server says more."""
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")

    async def give_up() -> None:
        is_asked, has_gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            is_asked.set()
            assert await reader.read(1) == b""
            has_gone.set()

        async with listening(serve, context=context if scheme == "https" else None) as port:
            account = ApiServer(f"{scheme}://127.0.0.1:{port}", "token", tmp_path / "ca.crt")
            api = KubernetesEndpointApi(lambda: account, ServiceTarget("decode", "default", "8010"))
            async with asyncio.timeout(TIMEOUT_SECONDS):
                task = asyncio.ensure_future(anext(api.watch_slices("1", 60.0)))
                await is_asked.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await has_gone.wait()

    began = time.monotonic()
    asyncio.run(give_up())  # which waits for no thread that still reads
    assert time.monotonic() - began < TIMEOUT_SECONDS
