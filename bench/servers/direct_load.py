"""The same load as `stream_load.c`, straight to a decode node: one `Serve` call, no gateway.

A process of its own, started by `baton bench gateway-cost`; `run` takes the fields of `Plan` from the command line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from typing import NamedTuple

import grpc
import uvloop

from baton.internal.v1.decode_service_pb2 import ServeRequest, ServeResponse, StreamStart
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from bench.local_cluster import generate_request


class Plan(NamedTuple):
    """What to ask."""

    port: int
    num_streams: int
    num_requests: int
    num_tokens: int
    num_prompt_tokens: int
    vocabulary_size: int
    ramp_seconds: float


class Client:
    """Keeps `num_streams` generations running until each has had its turns."""

    def __init__(self, plan: Plan, channel: grpc.aio.Channel) -> None:
        self._plan = plan
        self._call = DecodeServiceStub(channel).Serve()  # type: ignore[no-untyped-call]
        self._random = random.Random(os.getpid())
        self._starts: asyncio.Queue[StreamStart] = asyncio.Queue()
        self._last_ids: dict[int, float] = {}
        self._turns: dict[int, int] = {}
        self._seen: set[int] = set()
        self._num_started = 0
        self._num_ended = 0
        self.num_failed = 0
        self.num_events = 0
        self.ttft_us: list[int] = []
        self.itl_bins: Counter[int] = Counter()

    async def run(self) -> None:
        """Run to the end."""
        writing = asyncio.create_task(self._write())
        beginning = asyncio.create_task(self._begin())
        while self._num_ended < self._plan.num_streams * self._plan.num_requests:
            response = await self._call.read()
            if not isinstance(response, ServeResponse):
                raise RuntimeError("the decode node ended the call")
            self._take(response, time.perf_counter())
        for task in (writing, beginning):
            task.cancel()
        self._call.cancel()

    async def _begin(self) -> None:
        for index in range(self._plan.num_streams):
            self._start(self._plan.num_requests)
            if index + 1 < self._plan.num_streams:
                await asyncio.sleep(self._plan.ramp_seconds / self._plan.num_streams)

    async def _write(self) -> None:
        while True:
            starts = [await self._starts.get()]
            while not self._starts.empty():
                starts.append(self._starts.get_nowait())
            await self._call.write(ServeRequest(starts=starts))

    def _start(self, num_turns: int) -> None:
        self._num_started += 1
        stream_id = self._num_started
        prompt = [self._random.randrange(1, self._plan.vocabulary_size) for _ in range(self._plan.num_prompt_tokens)]
        request = generate_request(f"direct-{os.getpid()}-{stream_id}", prompt, self._plan.num_tokens)
        self._turns[stream_id] = num_turns
        self._last_ids[stream_id] = time.perf_counter()
        self._starts.put_nowait(StreamStart(stream_id=stream_id, request=request))

    def _take(self, response: ServeResponse, now: float) -> None:
        for stream_id in dict.fromkeys(response.token_stream_ids):
            gap_us = int((now - self._last_ids[stream_id]) * 1e6)
            self._last_ids[stream_id] = now
            self.num_events += 1
            if stream_id in self._seen:
                self.itl_bins[min(gap_us // 50, 20_000)] += 1
            else:
                self._seen.add(stream_id)
                self.ttft_us.append(gap_us)
        self.num_failed += len(response.failed)
        ended = [end.stream_id for end in response.finished] + [failure.stream_id for failure in response.failed]
        for stream_id in ended:
            self._num_ended += 1
            num_turns = self._turns.pop(stream_id) - 1
            if num_turns:
                self._start(num_turns)


async def main(plan: Plan) -> None:
    """Run a plan and print what came of it, as `stream_load.c` does."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{plan.port}") as channel:
        await channel.channel_ready()
        client = Client(plan, channel)
        began, cpu_began = time.perf_counter(), time.process_time()
        await client.run()
        result = {
            "seconds": time.perf_counter() - began,
            "num_failed": client.num_failed,
            "num_events": client.num_events,
            "own_cpu_seconds": time.process_time() - cpu_began,
            "ttft_us": client.ttft_us,
            "itl_bins_50us": client.itl_bins,
        }
    print(json.dumps(result))


def run() -> None:
    """Run the plan of the command line."""
    port, streams, requests, tokens, prompt_tokens, vocabulary = map(int, sys.argv[1:7])
    uvloop.run(main(Plan(port, streams, requests, tokens, prompt_tokens, vocabulary, float(sys.argv[7]))))
