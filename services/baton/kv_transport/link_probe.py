"""How fast the link from a node is: what it sends to whoever measures, and how its bytes are timed."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

import grpc

from baton.errors import InvalidFieldError, OverloadedError
from baton.internal.v1 import node_pb2
from baton.rpc.status import error_from_rpc
from baton.wire.quantities import duration_from_seconds

log = logging.getLogger(__name__)

_BUSY = "PROBE_BUSY"
_turn = threading.Lock()  # held while this process sends the bytes of a probe, by whichever way
_PROBE_TIMEOUT_SECONDS = 30.0
_NUM_PROBES = 5
_PROBING_SECONDS = 0.25
_BUSY_PAUSE_SECONDS = 0.05
"""Pause before a node is asked again that was sending to another."""


class Prober(Protocol):
    """A way to a node; `FastChannel`, `KvStub` and `BlockStub` are some."""

    def probe(self, num_bytes: int, timeout_seconds: float) -> AsyncIterable[object]:
        """Have it send so many bytes."""


async def measure_link(
    way: Prober, node_id: str, num_bytes: int, turn: asyncio.Lock | None = None
) -> node_pb2.LinkMeasurement:
    """Time empty calls and streams of `num_bytes`, and take the quickest of each: what delays one is not the link.

    A link on which a stream takes long is not burdened with another. Streams at once would share a network card, so a
    receiver has one at a time, in its `turn`, and so has a sender (`probe_turn`). Raises what the way's calls raise.
    """
    turn = turn or asyncio.Lock()
    await _timed_probe(way, 0)  # makes the connection
    async with turn:
        round_trip = min([await _timed_probe(way, 0) for _ in range(_NUM_PROBES)])
    seconds, sum_seconds = math.inf, 0.0
    for _ in range(_NUM_PROBES):
        taken = await _time_alone(way, num_bytes, turn)
        seconds, sum_seconds = min(seconds, taken), sum_seconds + taken
        if sum_seconds > _PROBING_SECONDS:
            break
    link = node_pb2.LinkMeasurement(
        from_node_id=node_id,
        bytes_per_second=link_bytes_per_second(num_bytes, seconds, round_trip),
        round_trip=duration_from_seconds(round_trip),
    )
    link.measured_at.FromDatetime(datetime.now(UTC))
    text = "link_measured peer=%s bytes_per_second=%.3g round_trip_seconds=%.5f"
    log.info(text, node_id, link.bytes_per_second, round_trip)
    return link


def link_bytes_per_second(num_bytes: int, seconds: float, round_trip_seconds: float) -> float:
    """Return a link's rate from a timed stream, less the round trip.

    Half of the time counts as transfer at least: on a busy machine an empty call may take longer than the stream, and a
    rate without bound would draw every request. `num_bytes`: bytes received. `seconds`: time for them, above 0.
    `round_trip_seconds`: time of an empty call.
    """
    return num_bytes / max(seconds - round_trip_seconds, seconds / 2)


def probe_sizes(byte_count: int, message_byte_count: int) -> Iterator[int]:
    """Return a link probe's payload sizes, lazily: there may be one a byte; raise InvalidFieldError if out of range."""
    if not 0 <= byte_count <= 256 << 20:
        raise InvalidFieldError("byte_count", f"expected 0 to {256 << 20}, got {byte_count}")
    if not 0 <= message_byte_count <= 4 << 20:
        raise InvalidFieldError("message_byte_count", f"expected 0 to {4 << 20}, got {message_byte_count}")
    size = message_byte_count or 1 << 20
    return (min(size, byte_count - start) for start in range(0, byte_count, size))


@contextmanager
def probe_turn(byte_count: int) -> Iterator[None]:
    """Keep others from being sent a probe's bytes meanwhile; raise OverloadedError while they are."""
    if byte_count and not _turn.acquire(blocking=False):
        raise OverloadedError("another node's link is being measured; ask again soon", reason=_BUSY)
    try:
        yield
    finally:
        if byte_count:
            _turn.release()


async def _time_alone(way: Prober, num_bytes: int, turn: asyncio.Lock) -> float:
    """Time a stream as soon as the sender has none for others; where that takes long, raise its refusal."""
    asked = time.perf_counter()
    while True:
        try:
            async with turn:
                return await _timed_probe(way, num_bytes)
        except (OverloadedError, grpc.aio.AioRpcError) as error:
            told = error_from_rpc(error) if isinstance(error, grpc.aio.AioRpcError) else error
            if told.reason != _BUSY or time.perf_counter() - asked > _PROBE_TIMEOUT_SECONDS:
                raise
        await asyncio.sleep(_BUSY_PAUSE_SECONDS)


async def _timed_probe(way: Prober, num_bytes: int) -> float:
    started = time.perf_counter()
    async for _ in way.probe(num_bytes, _PROBE_TIMEOUT_SECONDS):
        pass
    return time.perf_counter() - started
