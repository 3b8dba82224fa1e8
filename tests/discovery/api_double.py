"""A Kubernetes API server's EndpointSlices over real HTTP: lists, watches with history, and faults on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from baton.discovery.api_server import ApiServer
from baton.discovery.endpoints import ServiceTarget
from baton.discovery.kubernetes_api import KubernetesEndpointApi
from tcp_server import listening

TARGET = ServiceTarget("router", "llm", "grpc")
PORT = 8010
TIMEOUT_SECONDS = 60.0
"""Bound for a loaded machine; on a quiet one a view is right within some tens of milliseconds."""
_PATH = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"


def slice_document(name: str, version: int, pods: Iterable[str], *, not_ready: Iterable[str] = ()) -> dict[str, Any]:
    """Return an EndpointSlice of pods by their addresses."""
    conditions = [(pod, True) for pod in pods] + [(pod, False) for pod in not_ready]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "llm", "resourceVersion": str(version)},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [pod], "conditions": {"ready": is_ready}} for pod, is_ready in conditions],
        "ports": [{"name": "grpc", "port": PORT, "protocol": "TCP"}],
    }


class ApiDouble:
    """The server. Its state is `slices`; `change` and `delete` make events, the other methods faults."""

    def __init__(self) -> None:
        self.version = 100
        self.slices: dict[str, dict[str, Any]] = {}
        self.num_lists = 0
        self.num_watches = 0
        self.num_failed = 0
        self.failing_status = 0
        """Status of every answer, 0: the right one."""
        self.bytes_at_once = 0
        """Answers are sent in pieces of so many bytes with a pause between them; 0: whole."""
        self.is_sending_twice = False
        """Whether every event is sent twice."""
        self._history: list[tuple[int, dict[str, Any]]] = []
        self._forgotten = 0
        self._streams: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Condition()
        self.port = 0

    @property
    def num_open(self) -> int:
        """Connections on which a watch runs."""
        return len(self._streams)

    @property
    def addresses(self) -> frozenset[str]:
        """What a client should see."""
        return frozenset(
            f"{endpoint['addresses'][0]}:{PORT}"
            for document in self.slices.values()
            for endpoint in document["endpoints"]
            if endpoint["conditions"]["ready"]
        )

    async def change(self, name: str, pods: Iterable[str], *, not_ready: Iterable[str] = ()) -> None:
        """Make or change a slice."""
        self.version += 1
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = slice_document(name, self.version, pods, not_ready=not_ready)
        await self._tell(kind, self.slices[name])

    async def delete(self, name: str) -> None:
        """Delete a slice."""
        self.version += 1
        document = self.slices.pop(name)
        document["metadata"]["resourceVersion"] = str(self.version)
        await self._tell("DELETED", document)

    async def bookmark(self) -> None:
        """Tell watchers the version, as if other objects had changed."""
        self.version += 10
        await self._tell("BOOKMARK", {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(self.version)}})

    def forget(self) -> None:
        """Compact the history: watches from before are answered with 410."""
        self._forgotten = self.version
        self._history.clear()

    def cut(self) -> None:
        """Break every running watch."""
        for writer in self._streams:
            writer.transport.abort()
        self._streams.clear()

    async def send_raw(self, content: bytes) -> None:
        """Write bytes into every running watch, as far as its client takes them: it may go at the first line."""
        for writer in list(self._streams):
            with suppress(ConnectionError):
                await self._chunk(writer, content)

    def api(self) -> KubernetesEndpointApi:
        """Return a client of this server."""
        return KubernetesEndpointApi(lambda: ApiServer(f"http://127.0.0.1:{self.port}", "token"), TARGET)

    async def _tell(self, kind: str, document: dict[str, Any]) -> None:
        async with self._changed:
            self._history.append((self.version, {"type": kind, "object": json.loads(json.dumps(document))}))
            self._changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        while request := (await reader.readline()).decode():
            while (await reader.readline()).strip():
                pass
            await self._answer(urlsplit(request.split()[1]), reader, writer)

    async def _answer(self, url: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        assert url.path == _PATH, url.path
        assert query["labelSelector"] == "kubernetes.io/service-name=router"
        if self.failing_status:
            self.num_failed += 1
            await self._send(writer, self.failing_status, b'{"kind": "Status"}')
        elif query.get("watch") == "true":
            self.num_watches += 1
            await self._watch(int(query["resourceVersion"]), float(query["timeoutSeconds"]), reader, writer)
        else:
            self.num_lists += 1
            body = {"metadata": {"resourceVersion": str(self.version)}, "items": list(self.slices.values())}
            await self._send(writer, 200, json.dumps(body).encode())

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(f"HTTP/1.1 {status} Status\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        await self._write(writer, body)

    async def _watch(
        self, version: int, seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._streams.add(writer)
        streaming = asyncio.create_task(self._stream(version, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            done, _ = await asyncio.wait({streaming, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        finally:
            self._streams.discard(writer)
            for task in (streaming, leaving):
                task.cancel()
            await asyncio.gather(streaming, leaving, return_exceptions=True)

    async def _stream(self, version: int, writer: asyncio.StreamWriter) -> None:
        while True:
            if version < self._forgotten:
                gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
                await self._chunk(writer, json.dumps(gone).encode() + b"\n")
                await asyncio.Event().wait()
            events = [(number, event) for number, event in list(self._history) if number > version]
            for number, event in events:
                line = json.dumps(event).encode() + b"\n"
                await self._chunk(writer, line * (2 if self.is_sending_twice else 1))
                version = number
            async with self._changed:
                await self._changed.wait_for(lambda seen=version: self.version > seen and self._history)

    async def _chunk(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        writer.write(f"{len(content):x}\r\n".encode())
        await self._write(writer, content)
        writer.write(b"\r\n")
        await writer.drain()

    async def _write(self, writer: asyncio.StreamWriter, content: bytes) -> None:
        size = self.bytes_at_once or len(content) or 1
        for start in range(0, len(content), size):
            writer.write(content[start : start + size])
            await writer.drain()
            if self.bytes_at_once:
                await asyncio.sleep(0.001)


async def eventually(is_true: Callable[[], bool]) -> None:
    """Return when something on the other side of a connection has come about."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_true():  # noqa: ASYNC110 - the client's threads tell no event
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_double() -> AsyncIterator[ApiDouble]:
    """Run a server for the length of the context."""
    double = ApiDouble()
    async with listening(double.serve) as double.port:
        try:
            yield double
        finally:
            double.cut()
