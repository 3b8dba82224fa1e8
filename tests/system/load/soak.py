"""Must show 7: many streaming clients at once, whose outputs must equal those that they get alone."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc

from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from system.client import DEADLINE_SECONDS, Ask, grpc_request, rest_body
from system.cluster import Cluster

NUM_CLIENTS = 50
DISCONNECT_SHARE = 0.15
"""Share of requests that the client leaves after a few chunks."""
REST_SHARE = 0.3
"""Share of requests that go through REST and server-sent events; the others through gRPC."""

_LENGTHS = (1, 2, 15, 16, 17, 64, 130, 255, 400, 512, 699, 700)
_SHARED_PREFIX_TOKENS = 300
_VOCABULARY = range(3, 512)
_HEAD = (
    "POST /v1/completions HTTP/1.1\r\nhost: baton\r\ncontent-type: application/json\r\n"
    "content-length: {num_bytes}\r\nconnection: close\r\n\r\n"
)


@dataclass
class Tally:
    """What the clients have seen."""

    num_requests: int = 0
    """Requests that ran to their end."""
    num_left: int = 0
    """Requests that the client left midway."""
    num_tokens: int = 0
    """Tokens of the requests that ran to their end."""
    mismatches: list[str] = field(default_factory=list)
    """Outputs that differ from the one alone."""
    errors: list[str] = field(default_factory=list)
    """Requests that failed."""

    @property
    def is_telling(self) -> bool:
        """Return whether clients have finished more than one request each, or failed, and some were left."""
        return self.num_left > 0 and self.num_requests + len(self.errors) > NUM_CLIENTS


class Outputs(dict[Ask, str]):
    """The text of each request when it ran alone."""


def make_asks() -> list[Ask]:
    """Return requests of mixed lengths, greedy and sampled, half of them with one of two long prefixes in common."""
    drawn = random.Random(7)
    prefixes = [[drawn.choice(_VOCABULARY) for _ in range(_SHARED_PREFIX_TOKENS)] for _ in range(2)]
    asks = []
    for index, length in enumerate(_LENGTHS * 2):
        own = [drawn.choice(_VOCABULARY) for _ in range(length)]
        shared = prefixes[index % 4 // 2] if index % 2 else []
        prompt = tuple([*shared, *own][:length])
        asks.append(Ask(prompt, drawn.randint(8, 48), drawn.choice((0.0, 0.7, 1.0)), seed=index))
    return asks


async def read_alone(cluster: Cluster, asks: Sequence[Ask]) -> Outputs:
    """Return the output of each request, asked one after the other."""
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        return Outputs({ask: "".join([text async for text in _stream_grpc(channel, ask)]) for ask in asks})


async def run_clients(cluster: Cluster, outputs: Mapping[Ask, str], seconds: float, seed: int) -> Tally:
    """Run all clients, each with one request after the other; every request is finished or left.

    Args:
        cluster: Where.
        outputs: What each request gives alone.
        seconds: For how long; longer, until some were left and clients began anew, where the machine is slow.
        seed: Of what is drawn.
    """
    tally = Tally()
    deadline = asyncio.get_running_loop().time() + seconds
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel, asyncio.TaskGroup() as tasks:
        for client in range(NUM_CLIENTS):
            drawn = random.Random(1000 * seed + client)
            tasks.create_task(_run_client(cluster, channel, outputs, drawn, deadline, tally))
    return tally


async def _run_client(
    cluster: Cluster,
    channel: grpc.aio.Channel,
    outputs: Mapping[Ask, str],
    drawn: random.Random,
    deadline: float,
    tally: Tally,
) -> None:
    asks = list(outputs)
    while asyncio.get_running_loop().time() < deadline or not tally.is_telling:
        ask = drawn.choice(asks)
        is_rest = drawn.random() < REST_SHARE
        num_chunks = drawn.randint(1, 6) if drawn.random() < DISCONNECT_SHARE else None
        chunks = _stream_rest(cluster, ask) if is_rest else _stream_grpc(channel, ask)
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                text, is_whole = await _read(chunks, num_chunks)
        except (grpc.aio.AioRpcError, OSError, RuntimeError, TimeoutError) as error:
            tally.errors.append(f"{type(error).__name__}: {error}")
            continue
        _count(tally, ask, text, outputs[ask], is_whole=is_whole)


async def _read(chunks: AsyncIterator[str], num_chunks: int | None) -> tuple[str, bool]:
    """Return the text of a stream, and whether it was read to its end; else it is closed after some chunks."""
    texts: list[str] = []
    async with aclosing(chunks) as open_chunks:  # type: ignore[type-var]
        async for text in open_chunks:
            texts.append(text)
            if len(texts) == num_chunks:
                return "".join(texts), False
    return "".join(texts), True


def _count(tally: Tally, ask: Ask, text: str, alone: str, *, is_whole: bool) -> None:
    if is_whole:
        tally.num_requests += 1
        tally.num_tokens += ask.num_tokens
    else:
        tally.num_left += 1
    if text != alone if is_whole else not alone.startswith(text):
        tally.mismatches.append(
            f"{len(ask.prompt_token_ids)} prompt tokens, seed {ask.seed}: {text!r} is not {alone!r}"
        )


async def _stream_grpc(channel: grpc.aio.Channel, ask: Ask) -> AsyncIterator[str]:
    call = GenerationServiceStub(channel).Generate(grpc_request(ask), timeout=DEADLINE_SECONDS)  # type: ignore[no-untyped-call]
    try:
        async for response in call:
            yield response.text
            if response.HasField("finished"):
                return
    finally:
        call.cancel()


async def _stream_rest(cluster: Cluster, ask: Ask) -> AsyncIterator[str]:
    reader, writer = await asyncio.open_connection(*cluster.http_address)
    try:
        body = rest_body(ask)
        writer.write(_HEAD.format(num_bytes=len(body)).encode() + body)
        if b" 200 " not in await reader.readline():
            raise RuntimeError((await reader.read()).decode())
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                yield event["choices"][0]["text"]
            elif line.startswith(b"data: [DONE]"):
                return
        raise RuntimeError("the connection was cut before the stream ended")
    finally:
        writer.close()
