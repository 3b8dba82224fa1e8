"""What the load pod runs, on Python alone: clients that stream completions and compare every token with what is right.

Each prompt is asked once before the load begins; greedy output must be the same ever after. A client keeps its
connection, looks whether it was closed before it sends, and asks nothing twice. It ends when /tmp/stop is there, and
prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path

URL = urllib.parse.urlsplit(os.environ["URL"])
ADDRESS = socket.gethostbyname(URL.hostname or "")
"""Asked once: that no name is found while DNS is away is no fault of a release."""
MODEL, KEY = os.environ["MODEL"], os.environ.get("API_KEY", "")
NUM_CLIENTS, NUM_TOKENS = int(os.environ["CLIENTS"]), int(os.environ["TOKENS"])
PROMPT_CHARACTERS, NUM_PROMPTS = int(os.environ["CHARACTERS"]), int(os.environ["PROMPTS"])
WORDS = ["one", "two", "three", "four", "house", "river", "blue", "seven", "light", "stone", "bread", "music"]
STOP, SILENT_SECONDS = Path("/tmp/stop"), 60.0


def prompt_of(number: int) -> str:
    """Return a prompt that begins like no other."""
    draw = random.Random(number)
    text = f"{number} "
    while len(text) < PROMPT_CHARACTERS:
        text += draw.choice(WORDS) + " "
    return text[:PROMPT_CHARACTERS]


class Client:
    """One connection after another, one request after another."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader = asyncio.StreamReader()
        self.writer: asyncio.StreamWriter | None = None

    async def connect(self) -> asyncio.StreamWriter:
        """Return the connection, a new one unless it is there and was not closed."""
        if self.writer is None or self.reader.at_eof() or self.writer.is_closing():
            self.close()
            self.reader, self.writer = await asyncio.open_connection(ADDRESS, URL.port or 80)
        return self.writer

    def close(self) -> None:
        """Forget the connection."""
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    async def line(self) -> bytes:
        """Return the next line."""
        return await asyncio.wait_for(self.reader.readline(), SILENT_SECONDS)

    async def complete(self, prompt: str) -> AsyncIterator[str]:
        """Yield the pieces of a streamed completion.

        Raises:
            RuntimeError: If the answer is an error, or ends early.
        """
        body = {"model": MODEL, "prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "stream": True}
        data = json.dumps({**body, "ignore_eos": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {URL.hostname}\r\nContent-Type: application/json\r\n"
        head += f"Authorization: Bearer {KEY}\r\n" if KEY else ""
        writer = await self.connect()
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await self.line()
        if not status:
            raise RuntimeError("closed before an answer")
        is_closing = False
        num_bytes = 0
        while (field := (await self.line()).strip().lower()) != b"":
            is_closing = is_closing or field == b"connection: close"
            if field.startswith(b"content-length:"):
                num_bytes = int(field.split(b":")[1])
        if b" 200 " not in status:
            told = await self.reader.readexactly(num_bytes) if num_bytes else b""
            raise RuntimeError(f"{status.split()[1].decode()} {told[:300].decode()}")
        has_ended = False
        while (size := int(await self.line() or b"0", 16)) > 0:
            chunk = await asyncio.wait_for(self.reader.readexactly(size + 2), SILENT_SECONDS)
            for line in chunk.splitlines():
                if line == b"data: [DONE]":
                    has_ended = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise RuntimeError(f"error event {line[:300].decode()}")
                    for choice in event.get("choices", ()):
                        yield choice.get("text", "")
        await self.line()
        if not has_ended:
            raise RuntimeError("the stream ended without [DONE]")
        if is_closing:
            self.close()


class Record:
    """What became of the requests."""

    def __init__(self) -> None:
        self.right: dict[int, str] = {}
        self.first_seconds: list[float] = []
        self.gaps: list[float] = []
        self.failures: list[dict[str, object]] = []
        self.num_ok = self.num_wrong = 0
        self.started = time.time()

    async def ask(self, client: Client, number: int, *, is_counted: bool = True) -> bool:
        """Ask one prompt, and hold the answer against the first one."""
        began = last = time.monotonic()
        text, gap = "", 0.0
        first: float | None = None
        try:
            async for piece in client.complete(prompt_of(number)):
                now = time.monotonic()
                first = now - began if first is None else first
                gap = max(gap, now - last) if text else gap
                text, last = text + piece, now
        except (TimeoutError, OSError, RuntimeError, ValueError, EOFError) as error:
            client.close()
            cause = f"{type(error).__name__}: {error}"
            if is_counted:
                self.failures.append({"at": round(time.time() - self.started, 1), "cause": cause, "text": len(text)})
            return False
        expected = self.right.setdefault(number, text)
        if is_counted:
            self.num_ok, self.num_wrong = self.num_ok + 1, self.num_wrong + (text != expected)
            self.first_seconds.append(first or 0.0)
            self.gaps.append(gap)
        return True

    def summary(self) -> dict[str, object]:
        """Return the numbers."""
        ordered = sorted(self.first_seconds) or [0.0]
        return {
            "num_ok": self.num_ok,
            "num_wrong": self.num_wrong,
            "failures": self.failures,
            "ttft_p50_seconds": ordered[len(ordered) // 2],
            "ttft_p99_seconds": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "worst_gap_seconds": max(self.gaps, default=0.0),
            "seconds": time.time() - self.started,
        }


async def main() -> None:
    """Learn what is right, then load until told to stop."""
    record, client = Record(), Client()
    if NUM_PROMPTS:
        for number in range(NUM_PROMPTS):
            while not await record.ask(client, number, is_counted=False):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.2)
    record.started = time.time()
    Path("/tmp/ready").touch()  # noqa: ASYNC240 - in memory

    async def load(seed: int) -> None:
        own, draw, fresh = Client(), random.Random(seed), seed * 1_000_000 + 1000
        while not STOP.exists():  # noqa: ASYNC240 - a look at memory
            fresh += 1
            if not await record.ask(own, draw.randrange(NUM_PROMPTS) if NUM_PROMPTS else fresh):
                await asyncio.sleep(0.1)

    await asyncio.gather(*map(load, range(1, NUM_CLIENTS + 1)))
    print(json.dumps(record.summary()))


asyncio.run(main())
