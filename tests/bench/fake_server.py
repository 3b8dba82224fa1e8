"""A server that answers by a script of bytes, each piece a packet of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tcp_server import listening

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class FakeServer:
    """Where it listens, and what it has been asked."""

    url: str = ""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Path and body of each request."""
    num_connections: int = 0


Script = Callable[[str, dict[str, Any]], Sequence[bytes]]
"""From path and body to the pieces of an answer; an empty piece hangs up."""


@asynccontextmanager
async def fake_server(script: Script) -> AsyncIterator[FakeServer]:
    """Run a server on a free port of 127.0.0.1."""
    fake = FakeServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.num_connections += 1
        with suppress(asyncio.IncompleteReadError):
            while await _answer(reader, writer, script, fake):
                pass

    async with listening(serve) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, script: Script, fake: FakeServer) -> bool:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length")]
    body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
    path = head.split()[1]
    fake.requests.append((path, body))
    for piece in script(path, body):
        if not piece:
            return False
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    return True


def chunked(body: bytes) -> bytes:
    """Return a body as one HTTP chunk and the end."""
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def sse(*events: object) -> bytes:
    """Return events as a stream: a str as it is, everything else as JSON; `[DONE]` at the end."""
    lines = [event if isinstance(event, str) else f"data: {json.dumps(event)}" for event in events]
    return "".join(f"{line}\n\n" for line in [*lines, "data: [DONE]"]).encode()


def text_chunk(text: str) -> dict[str, Any]:
    """Return a chunk of /v1/completions."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": None}]}


def delta_chunk(text: str) -> dict[str, Any]:
    """Return a chunk of /v1/chat/completions."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def usage_chunk(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, Any]:
    """Return the chunk with the usage."""
    details = {"cached_tokens": cached_tokens}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "prompt_tokens_details": details}
    return {"choices": [], "usage": usage}


def json_answer(document: object, status: str = "200 OK") -> bytes:
    """Return a whole answer with a JSON body."""
    body = json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
