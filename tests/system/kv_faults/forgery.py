"""Messages of KV streams as a sender that lies, or one in its place, would make them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from google.protobuf.message import DecodeError

from baton.internal.v1.kv_pb2 import FRAME_KIND_KV, KvFrame
from baton.internal.v1.prefill_service_pb2 import PrefillResponse as Response
from baton.kv import stream
from baton.shm.lender import Segment

_PROVEN = {
    "frame": {field.name for field in KvFrame.DESCRIPTOR.fields} - {"ready_offset"},
    "first_token": {"token", "crc32c"},
    "summary": {"frame_count", "byte_count", "token_begin", "token_end", "frames_crc32c"},
}
"""Fields of each element by which more than the sender's own work is told."""


def made_of(kind: str, messages: Sequence[bytes], segments: Sequence[Segment], drawn: random.Random) -> bytes | None:
    """Return what comes in the place of a stream's last message; None: that one is not what the fault is made of.

    Responses of PullBlocks are read as those of Prefill: their elements have the same numbers.

    Args:
        kind: What is made.
        messages: The stream's so far.
        segments: Memory in which payloads may be; "flip_memory" changes it.
        drawn: Of bits and places.
    """
    made = Response.FromString(messages[-1])
    element = made.WhichOneof("element")
    if kind == "impostor" and element == "layout":
        made.transfer_answer = drawn.choice((b"", drawn.randbytes(32)))
    elif kind == "lying_sum" and element == "summary":
        field = drawn.choice(("frame_count", "byte_count", "frames_crc32c", "token_begin", "token_end"))
        setattr(made.summary, field, getattr(made.summary, field) ^ 1 << drawn.randrange(20))
    elif kind.startswith(("swap", "wrong", "lying", "flip")) and kind != "lying_sum" and element == "frame":
        if not _change(kind, made.frame, messages, segments, drawn):
            return None
    else:
        return None
    return made.SerializeToString()


def is_same(message: bytes, other: bytes) -> bool:
    """Return whether a message says all that another says, but for what a sender tells of its own work.

    A layout may lack the digest of a tokenizer, and the key of its stream: then no frame counts
    before the summary.
    """
    try:
        mine, theirs = _essence(message), _essence(other)
    except DecodeError:
        return False
    if mine.HasField("layout") and theirs.HasField("layout"):
        theirs.layout.tokenizer_digest = theirs.layout.tokenizer_digest or mine.layout.tokenizer_digest
        theirs.layout.weight_rounding = mine.layout.weight_rounding  # told, and not compared
        for layout in (mine.layout, theirs.layout):  # as who reads them takes what is not told
            layout.wire_dtype = layout.wire_dtype or layout.dtype
            layout.value_wire_dtype = layout.value_wire_dtype or layout.wire_dtype
        if not theirs.HasField("request_crc32c"):
            theirs.request_crc32c = mine.request_crc32c
    if mine.HasField("frame") and theirs.HasField("frame"):
        theirs.frame.kind = theirs.frame.kind or FRAME_KIND_KV  # as senders of before mean it; others are refused
    return mine == theirs


def _change(
    kind: str, frame: KvFrame, messages: Sequence[bytes], segments: Sequence[Segment], drawn: random.Random
) -> bool:
    """Change a frame; return whether it could be."""
    if kind == "swap_layers":
        frame.layer_begin = frame.layer_begin + 1 if frame.layer_begin == 0 else frame.layer_begin - 1
        return True
    if kind == "swap_payloads":
        return _take_payload(frame, Response.FromString(messages[-2]).frame)
    if kind == "flip_memory":
        return _flip_memory(frame, segments, drawn)
    if kind == "lying_place":
        field = drawn.choice(("layer_begin", "token_begin"))
        setattr(frame, field, getattr(frame, field) + 1)
    elif kind == "lying_size":
        if frame.HasField("shared"):
            frame.shared.values_byte_count -= 1
            return True  # nobody comes to the checksums
        frame.values = frame.values[:-1]
    elif frame.HasField("shared"):
        frame.crc32c ^= 1 << drawn.randrange(32)
    else:
        changed = bytearray(frame.keys)
        changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
        frame.keys = bytes(changed)
    if not frame.HasField("shared"):
        frame.crc32c = stream.payload_crc32c(frame.keys, frame.values, frame.key_scales, frame.value_scales)
    key = Response.FromString(messages[0]).request_crc32c ^ (kind == "wrong_key")
    frame.header_crc32c = _header_crc(key, frame)
    return True


def _take_payload(frame: KvFrame, other: KvFrame) -> bool:
    mine, theirs = _payload(frame), _payload(other)
    if mine == theirs or len(mine) != len(theirs):
        return False
    if frame.HasField("shared") and other.HasField("shared"):
        frame.shared.CopyFrom(other.shared)
    else:
        frame.keys, frame.values = other.keys, other.values
    return True


def _payload(frame: KvFrame) -> bytes:
    return frame.shared.SerializeToString() if frame.HasField("shared") else frame.keys + frame.values


def _flip_memory(frame: KvFrame, segments: Sequence[Segment], drawn: random.Random) -> bool:
    """Change a bit of the memory in which the frame's payload is, which nobody has looked at yet."""
    begin, end = (
        frame.shared.offset,
        frame.shared.offset + frame.shared.keys_byte_count + frame.shared.values_byte_count,
    )
    for segment in segments:  # one is of this stream, others of those beside it, whose frames have been checked
        if begin < end and stream.payload_crc32c(segment.memory[begin:end].data, b"") == frame.crc32c:
            segment.memory[drawn.randrange(begin, end)] ^= np.uint8(1 << drawn.randrange(8))
            return True
    return False


def _header_crc(key: int, frame: KvFrame) -> int:
    place = stream.KvFrame(frame.layer_begin, frame.layer_count, frame.token_begin, frame.token_count, b"", b"")
    return stream.header_crc32c(key, frame.sequence_number, place, frame.crc32c)


def _essence(message: bytes) -> Response:
    response = Response.FromString(message)
    response.DiscardUnknownFields()  # type: ignore[attr-defined] # missing in its types
    for own in ("uses_shared_memory", "clock"):
        response.ClearField(own)
    element = response.WhichOneof("element")
    if element == "layout":
        response.layout.ClearField("model_id")
    elif element is not None:
        part = getattr(response, element)
        for field, _ in part.ListFields():
            if field.name not in _PROVEN[element]:
                part.ClearField(field.name)
    return response
