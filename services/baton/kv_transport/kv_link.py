"""KV frames without a model: what a link and a machine can carry, by each transport that nodes have.

Both ends make the same random bytes from the same seed, so the receiver can compare what landed. `baton kv-link` is the
command of it.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np

from baton.grpc_sockets.client import connect
from baton.grpc_sockets.server_connection import ServerCall
from baton.grpc_sockets.status import Code, Status
from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceServicer
from baton.kv.stream import KvFrame, payload_crc32c
from baton.kv_transport.fast_channel import LIMITS, FastChannel
from baton.kv_transport.frame_codec import (
    EncodedFrame,
    ReceivedFrame,
    SharedMemoryWriter,
    encode_frame,
    open_shared_memory,
    parse_response,
)
from baton.kv_transport.kv_services import PREFILL_PATH, KvStub, ReceivedRequest
from baton.rpc.channel import open_channel
from baton.shm.lender import SEGMENT_BYTES, Lender

SOURCE_BYTES = 64 << 20
"""Random memory that frames are sent from, again and again: more than a processor's cache holds."""
MAX_FRAMES_KEPT = 8
"""Frames that a decode node keeps at most until its engine has written them (baton.decode.kv_stream.reader)."""
_SEED = 1
_HEADER_BYTES = 256
"""Room before each frame's payload, for its message's other fields."""
_SUMMARY = prefill_service_pb2.PrefillResponse(summary=kv_pb2.KvSummary())


class LinkPath(StrEnum):
    """What carries the frames."""

    FAST = "fast"
    """baton.grpc_sockets alone: no checksums, no event loop."""
    CHECKED = "fast-checked"
    """The fast path as nodes use it: a CRC-32C at either end, messages handed to an event loop."""
    SHARED = "shared"
    """Shared memory as nodes use it: a CRC-32C at either end, headers by the fast path."""
    GRPC = "grpc"
    """The gRPC library as nodes use it, without checksums."""


async def receive_frames(path: LinkPath, address: str, num_frames: int, landing: Landing) -> None:
    """Have frames sent, and land them.

    Raises:
        RuntimeError: If the stream fails.
    """
    request = prefill_service_pb2.PrefillRequest(chunk_token_count=num_frames, layers_per_frame=landing.frame_bytes)
    receive = {
        LinkPath.FAST: _receive_fast,
        LinkPath.CHECKED: _receive_checked,
        LinkPath.SHARED: _receive_shared,
        LinkPath.GRPC: _receive_by_grpc,
    }
    await receive[path](address, request, landing)


class FrameSource:
    """Sends the frames that a request asks for: `chunk_token_count` frames of `layers_per_frame` bytes, then a summary.

    Args:
        has_checksums: Whether frames carry their CRC-32C.
    """

    def __init__(self, *, has_checksums: bool) -> None:
        self._memory = source_memory()
        self._has_checksums = has_checksums

    def frames(
        self, request: prefill_service_pb2.PrefillRequest, writer: SharedMemoryWriter | None = None
    ) -> Iterator[EncodedFrame]:
        """Yield frames whose payloads are views of the source, or in shared memory."""
        view, num_bytes = memoryview(self._memory.data), request.layers_per_frame
        for index in range(request.chunk_token_count):
            start = index * num_bytes % SOURCE_BYTES
            middle = start + num_bytes // 2
            keys, values = view[start:middle], view[middle : start + num_bytes]
            crc = payload_crc32c(keys, values) if self._has_checksums else 0
            frame = KvFrame(0, 1, index, 1, keys, values)
            yield writer.encode(frame, index, crc, None, None) if writer else encode_frame(frame, index, crc)

    def serve(self, request: ReceivedRequest, call: ServerCall) -> None:
        """Send on the fast path, in the thread of a call; payloads by shared memory where the request offers some."""
        writer = open_shared_memory(request.message)
        for frame in self.frames(request.message, writer):
            call.send(*frame.parts)
        call.send(_SUMMARY.SerializeToString())


class GrpcFrames(PrefillServiceServicer):
    """Sends by the gRPC library."""

    def __init__(self, source: FrameSource) -> None:
        self._source = source

    async def Prefill(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802, ARG002
        """Stream the frames."""
        for frame in self._source.frames(request.message):
            yield frame
        yield _SUMMARY


class Landing:
    """Memory that messages land in, slot after slot, round and round; allocated and touched before anything is timed.

    Args:
        num_slots: Frames that it holds.
        frame_bytes: Payload of a frame.
    """

    def __init__(self, num_slots: int, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self._slot_bytes = frame_bytes + _HEADER_BYTES
        self._memory = np.full(num_slots * self._slot_bytes, 1, np.uint8)  # zeros would not be touched before use
        self._num_slots = num_slots
        self._num_given = 0
        self.frames: list[KvFrame | None] = [None] * num_slots
        """What landed last in each slot."""
        self.num_frames = 0

    def give(self, num_bytes: int) -> memoryview:
        """Return memory for a message."""
        if num_bytes < _HEADER_BYTES:
            return memoryview(bytearray(num_bytes))
        start = self._num_given % self._num_slots * self._slot_bytes
        self._num_given += 1
        return memoryview(self._memory.data)[start : start + num_bytes]

    def landed(self, message: object) -> None:
        """Take note of a message."""
        if isinstance(message, ReceivedFrame):
            self.frames[self.num_frames % self._num_slots] = message.frame
            self.num_frames += 1

    def is_right(self, num_frames: int) -> bool:
        """Return whether all frames came and the bytes of the last ones are those that were sent."""
        source = source_memory()
        for frame in self.frames[:num_frames]:
            if frame is None:
                return False
            start = frame.token_begin * self.frame_bytes % SOURCE_BYTES
            landed = np.concatenate([np.frombuffer(frame.keys, np.uint8), np.frombuffer(frame.values, np.uint8)])
            if not np.array_equal(landed, source[start : start + self.frame_bytes]):
                return False
        return self.num_frames == num_frames


class _Listener:
    """Lands the messages of a call of baton.grpc_sockets."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing
        self.over = threading.Event()
        self.status: Status | None = None
        self.allocate = landing.give

    def message(self, data: memoryview) -> None:
        """Land a message, and have the window opened again."""
        self._landing.landed(parse_response(data))

    def ended(self, status: Status) -> None:
        """Take the end."""
        self.status = status
        self.over.set()


def source_memory() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return the bytes that both ends know."""
    return np.random.default_rng(_SEED).integers(0, 256, SOURCE_BYTES, dtype=np.uint8)


async def _receive_fast(address: str, request: prefill_service_pb2.PrefillRequest, landing: Landing) -> None:
    host, _, port = address.rpartition(":")
    connection = connect((host, int(port)), limits=replace(LIMITS, num_held_bytes=1 << 62))
    listener = _Listener(landing)
    connection.call(PREFILL_PATH, request.SerializeToString(), listener)
    listener.over.wait()
    connection.shut_down()
    if listener.status is None or listener.status.code is not Code.OK:
        raise RuntimeError(f"the stream ended with {listener.status}")


async def _receive_checked(address: str, request: prefill_service_pb2.PrefillRequest, landing: Landing) -> None:
    channel = FastChannel(address, landing)
    async for message in await channel.prefill(request):
        if isinstance(message, ReceivedFrame) and message.actual_crc32c != message.crc32c:
            raise RuntimeError(f"frame {message.sequence_number} has a wrong checksum")
        landing.landed(message)
    channel.close()


async def _receive_shared(address: str, request: prefill_service_pb2.PrefillRequest, landing: Landing) -> None:
    lender = Lender(SEGMENT_BYTES)
    lender.start()
    loan = lender.lend()
    request.shared_memory.address, request.shared_memory.token = loan.address, loan.token
    channel = FastChannel(address, landing)
    async for message in await channel.prefill(request, loan):
        if isinstance(message, ReceivedFrame) and message.actual_crc32c != message.crc32c:
            raise RuntimeError(f"frame {message.sequence_number} has a wrong checksum")
        landing.landed(message)
    channel.close()
    lender.close()


async def _receive_by_grpc(address: str, request: prefill_service_pb2.PrefillRequest, landing: Landing) -> None:
    channel = open_channel(address, is_dedicated=True)
    async for message in KvStub(channel).Prefill(request):
        landing.landed(message)
    await channel.close()
