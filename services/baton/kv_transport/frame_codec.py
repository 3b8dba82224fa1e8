"""The messages of KV streams as bytes: frames written and read around protobuf, their totals, and what asks for them.

protobuf copies a payload three times on its way; here the sender copies it once where the transport wants one piece,
else not at all, and the receiver, whose frame is a view of the message, not at all. The bytes are those of
`PrefillResponse` (prefill_service.proto), and of `PullBlocksResponse`, in every respect: any protobuf implementation
reads what is written here, and what any implementation writes is read here.

Where receiver and sender share memory (kv.proto, SharedMemoryOffer), a message has the place of the payload alone:
`SharedMemoryWriter` puts payloads there, `with_payload` finds them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import crc32c

from baton.errors import StreamBrokenError
from baton.internal.v1 import block_service_pb2, kv_pb2, prefill_service_pb2
from baton.kv.stream import FrameKind, KvFrame, StreamTotals
from baton.shm.borrower import Borrowed, borrow
from baton.shm.lender import Loan
from baton.wire.kv import state_from_proto, state_to_proto
from baton.wire.quantities import duration_from_seconds, seconds_from_duration

log = logging.getLogger(__name__)

Response = prefill_service_pb2.PrefillResponse | block_service_pb2.PullBlocksResponse
"""Messages that carry frames, and number their elements alike."""
Request = TypeVar("Request", prefill_service_pb2.PrefillRequest, block_service_pb2.PullBlocksRequest)
"""A request that a KV stream answers."""
_Response = TypeVar("_Response", prefill_service_pb2.PrefillResponse, block_service_pb2.PullBlocksResponse)
_LENGTH_DELIMITED = 2
_FRAME_TAG = prefill_service_pb2.PrefillResponse.FRAME_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_KEYS_TAG = kv_pb2.KvFrame.KEYS_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_VALUES_TAG = kv_pb2.KvFrame.VALUES_FIELD_NUMBER << 3 | _LENGTH_DELIMITED
_FIXED_BYTES = {1: 8, 5: 4}
"""Sizes of the fixed wire types."""
_MAX_FIELDS = 32
"""Fields of a frame looked at by hand; a message with more is left to protobuf."""


def serialize_request(request: Request) -> bytes:
    """Return the bytes of a request, always the same for the same request."""
    return request.SerializeToString(deterministic=True)


def request_crc32c(data: bytes) -> int:
    """Return the checksum of a request's bytes."""
    return int(crc32c.crc32c(data))


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """A frame, its number and its checksum, as they arrived; nothing is checked yet."""

    frame: KvFrame
    """The frame; its keys and values are views of the message."""
    sequence_number: int
    crc32c: int
    header_crc32c: int | None = None
    """Checksum of its number and place that the sender gave it; None: none."""
    actual_crc32c: int | None = None
    """Checksum of what arrived, where it was computed on arrival."""
    shared: kv_pb2.SharedPayload | None = None
    """Where the payload is that the message lacks; None: in the message, or found by `with_payload`."""

    def checked(self, actual_crc32c: int) -> ReceivedFrame:
        """Return the frame with the checksum of what arrived."""
        return replace(self, actual_crc32c=actual_crc32c)


class EncodedFrame(NamedTuple):
    """A message in parts, of which the large ones are the tensors' own memory."""

    parts: tuple[bytes | memoryview, ...]
    """Consecutive bytes of a `PrefillResponse`."""


def encode_frame(frame: KvFrame, sequence_number: int, crc: int, header_crc: int | None = None) -> EncodedFrame:
    """Return a `PrefillResponse` that carries a frame; keys and values are those of the frame, not copied."""
    message = _header(frame, sequence_number, crc, header_crc)
    message.key_scales, message.value_scales = bytes(frame.key_scales), bytes(frame.value_scales)
    header = message.SerializeToString()
    before_keys = header + _varint(_KEYS_TAG) + _varint(len(frame.keys))
    before_values = _varint(_VALUES_TAG) + _varint(len(frame.values))
    num_bytes = len(before_keys) + len(frame.keys) + len(before_values) + len(frame.values)
    start = _varint(_FRAME_TAG) + _varint(num_bytes)
    return EncodedFrame((start + before_keys, frame.keys, before_values, frame.values))


def encode_shared_frame(
    frame: KvFrame, sequence_number: int, crc: int, header_crc: int | None, offset: int
) -> EncodedFrame:
    """Return a `PrefillResponse` that says where in shared memory a frame's payload is; see `encode_frame`."""
    message = _header(frame, sequence_number, crc, header_crc)
    message.shared.offset = offset
    message.shared.key_scales_byte_count = len(frame.key_scales)
    message.shared.value_scales_byte_count = len(frame.value_scales)
    message.shared.keys_byte_count = len(frame.keys)
    message.shared.values_byte_count = len(frame.values)
    return EncodedFrame((prefill_service_pb2.PrefillResponse(frame=message).SerializeToString(),))


def _header(frame: KvFrame, sequence_number: int, crc: int, header_crc: int | None) -> kv_pb2.KvFrame:
    """Return the message of a frame, without its payload."""
    return kv_pb2.KvFrame(
        sequence_number=sequence_number,
        layer_begin=frame.layer_begin,
        layer_count=frame.num_layers,
        token_begin=frame.token_begin,
        token_count=frame.num_tokens,
        crc32c=crc,
        header_crc32c=header_crc,
        ready_offset=duration_from_seconds(frame.ready_seconds),
        kind=frame.kind,  # type: ignore[arg-type] # as kv_pb2.FrameKind numbers them
        state_tensors=state_to_proto(frame.state),
    )


def serialize_response(response: Response | EncodedFrame) -> bytes:
    """Return the bytes of a response."""
    return b"".join(response_parts(response))


def response_parts(response: Response | EncodedFrame) -> tuple[bytes | memoryview, ...]:
    """Return the bytes of a response in parts, of which the large ones are not copied."""
    return response.parts if isinstance(response, EncodedFrame) else (response.SerializeToString(),)


def parse_response(data: bytes | memoryview) -> prefill_service_pb2.PrefillResponse | ReceivedFrame:
    """Return the response of a message, in which a frame's keys and values stay; raise DecodeError if it is none."""
    return _parse(data, prefill_service_pb2.PrefillResponse)


def parse_pull_response(data: bytes | memoryview) -> block_service_pb2.PullBlocksResponse | ReceivedFrame:
    """Return the response of a message of `PullBlocks`, as `parse_response` does; raise DecodeError if it is none."""
    return _parse(data, block_service_pb2.PullBlocksResponse)


def _parse(data: bytes | memoryview, kind: type[_Response]) -> _Response | ReceivedFrame:
    parts = _split_frame(data)
    if parts is None:
        response = kind.FromString(bytes(data))
        if response.WhichOneof("element") != "frame":
            return response
        return _received(response.frame, response.frame.keys, response.frame.values)
    return _received(kv_pb2.KvFrame.FromString(parts.header), parts.keys, parts.values)


class _FrameParts(NamedTuple):
    """The bytes of a frame's message."""

    header: bytes
    """All fields but keys and values."""
    keys: memoryview
    values: memoryview


def _received(message: kv_pb2.KvFrame, keys: bytes | memoryview, values: bytes | memoryview) -> ReceivedFrame:
    frame = KvFrame(
        layer_begin=message.layer_begin,
        num_layers=message.layer_count,
        token_begin=message.token_begin,
        num_tokens=message.token_count,
        keys=keys,
        values=values,
        ready_seconds=seconds_from_duration(message.ready_offset),
        key_scales=message.key_scales,
        value_scales=message.value_scales,
        kind=message.kind or FrameKind.KV,
        state=state_from_proto(message.state_tensors),
    )
    header_crc = message.header_crc32c if message.HasField("header_crc32c") else None
    shared = message.shared if message.HasField("shared") else None
    return ReceivedFrame(frame, message.sequence_number, message.crc32c, header_crc, shared=shared)


def _split_frame(data: bytes | memoryview) -> _FrameParts | None:
    """Return the parts of a message that is one frame and nothing else, or None for protobuf to decide."""
    if not data or data[0] != _FRAME_TAG:
        return None
    view, contents = memoryview(data), {_KEYS_TAG: memoryview(b""), _VALUES_TAG: memoryview(b"")}
    header: list[memoryview] = []
    try:
        num_bytes, position = _read_varint(data, 1)
        if position + num_bytes != len(data):
            return None
        for _ in range(_MAX_FIELDS):
            if position == len(data):
                return _FrameParts(b"".join(header), contents[_KEYS_TAG], contents[_VALUES_TAG])
            tag, begin = _read_varint(data, position)
            end = _end_of_field(data, tag, begin)
            if tag in contents:
                _, begin = _read_varint(data, begin)
                contents[tag] = view[begin:end]
            else:
                header.append(view[position:end])
            position = end
    except (IndexError, ValueError):
        pass  # not the bytes of a message: protobuf says so in its own words
    return None


def _end_of_field(data: bytes | memoryview, tag: int, begin: int) -> int:
    """Return where a field ends that begins at `begin`; raise IndexError past the message, ValueError if unknown."""
    wire_type = tag & 7
    if wire_type == 0:
        _, end = _read_varint(data, begin)
    elif wire_type == _LENGTH_DELIMITED:
        num_bytes, begin = _read_varint(data, begin)
        end = begin + num_bytes
    elif wire_type in _FIXED_BYTES:
        end = begin + _FIXED_BYTES[wire_type]
    else:
        raise ValueError(f"wire type {wire_type}")
    if end > len(data):
        raise IndexError(end)
    return end


def _read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return a number and where it ends; raise IndexError if the message ends first, ValueError beyond 64 bits."""
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("varint")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def totals_to_proto(totals: StreamTotals) -> kv_pb2.KvSummary:
    """Return the summary of a stream, without what its sender says about itself."""
    return kv_pb2.KvSummary(
        frame_count=totals.num_frames,
        byte_count=totals.num_bytes,
        frames_crc32c=totals.frames_crc32c,
        token_begin=totals.token_begin,
        token_end=totals.token_end,
    )


def totals_from_proto(message: kv_pb2.KvSummary) -> StreamTotals:
    """Return what a summary promises."""
    return StreamTotals(
        message.frame_count, message.byte_count, message.frames_crc32c, message.token_begin, message.token_end
    )


class SharedMemoryWriter:
    """Puts payloads of a stream where its receiver reads them. `encode` is for one thread at once, `close` for any.

    `began`: when the stream did, `time.perf_counter` seconds. A frame is ready once the receiver has room for it, too.
    """

    def __init__(self, borrowed: Borrowed, began: float) -> None:
        self._borrowed, self._began = borrowed, began

    def encode(
        self, frame: KvFrame, sequence_number: int, crc: int, header_crc: int | None, timeout_seconds: float | None
    ) -> EncodedFrame:
        """Write a payload into the memory, or the message where it has no room; raise TimeoutError if it gets none."""
        parts = (frame.key_scales, frame.value_scales, frame.keys, frame.values)
        offset = self._borrowed.place(parts, timeout_seconds)
        if offset is None:
            return encode_frame(frame, sequence_number, crc, header_crc)
        ready_seconds = max(frame.ready_seconds, self._borrowed.had_room_at - self._began)
        frame = replace(frame, ready_seconds=ready_seconds)
        return encode_shared_frame(frame, sequence_number, crc, header_crc, offset)

    def close(self) -> None:
        """Give the memory back; whoever waits in `encode` wakes."""
        self._borrowed.close()


def open_shared_memory(request: prefill_service_pb2.PrefillRequest, began: float) -> SharedMemoryWriter | None:
    """Take the memory that a request offers; None: it offers none, or the caller is on another host. May wait."""
    if not request.HasField("shared_memory"):
        return None
    offer = request.shared_memory
    try:
        return SharedMemoryWriter(borrow(offer.address, offer.token), began)
    except (OSError, ValueError) as error:
        log.debug("shared_memory_unused request=%s cause=%s", request.request_id, error)
        return None


def with_payload(received: ReceivedFrame, loan: Loan | None) -> ReceivedFrame:
    """Return a frame with its payload, wherever that is; raise StreamBrokenError if it may not be there."""
    shared = received.shared
    if shared is None:
        return received
    if loan is None:
        raise StreamBrokenError("a frame refers to shared memory, and none was offered")
    if received.frame.num_bytes:
        raise StreamBrokenError("a frame has a payload, and refers to another one in shared memory")
    counts = (
        shared.key_scales_byte_count,
        shared.value_scales_byte_count,
        shared.keys_byte_count,
        shared.values_byte_count,
    )
    if min(counts) < 0:
        raise StreamBrokenError("a frame refers to a negative number of bytes in shared memory")
    try:
        view = loan.view(shared.offset, sum(counts))
    except ValueError as error:
        raise StreamBrokenError(f"a frame refers to shared memory that is not its own: {error}") from error
    parts = []
    for count in counts:
        parts.append(view[:count])
        view = view[count:]
    key_scales, value_scales, keys, values = parts
    payload = replace(received.frame, key_scales=key_scales, value_scales=value_scales, keys=keys, values=values)
    return replace(received, frame=payload, shared=None)
