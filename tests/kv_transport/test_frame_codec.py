"""Frames written and read around protobuf are what protobuf would have written and read."""

from __future__ import annotations

import math
from unittest.mock import create_autospec

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.kv.kv_format import KvDtype, StateTensor
from baton.kv.stream import FrameKind, KvFrame
from baton.kv_transport.frame_codec import (
    EncodedFrame,
    ReceivedFrame,
    SharedMemoryWriter,
    _read_varint,
    _varint,
    encode_frame,
    parse_response,
    serialize_response,
)
from baton.shm.borrower import Borrowed
from baton.wire.kv import state_to_proto
from baton.wire.quantities import duration_from_seconds

counts = st.integers(0, 2**31 - 1)
payloads = st.binary(max_size=300)
frames = st.builds(
    KvFrame,
    layer_begin=counts,
    num_layers=counts,
    token_begin=counts,
    num_tokens=counts,
    keys=payloads,
    values=payloads,
    ready_seconds=st.integers(0, 8000).map(lambda eighths: eighths / 8),
    kind=st.integers(1, 9),
    state=st.lists(
        st.builds(StateTensor, st.text(max_size=9), st.tuples(counts, counts), st.sampled_from(KvDtype)), max_size=1
    ).map(tuple),
)
numbers = st.integers(0, 2**63 - 1)
checksums = st.integers(0, 2**32 - 1)


def message_of(frame: KvFrame, sequence_number: int, crc: int) -> kv_pb2.KvFrame:
    """Return the frame as protobuf has it."""
    return kv_pb2.KvFrame(
        sequence_number=sequence_number,
        layer_begin=frame.layer_begin,
        layer_count=frame.num_layers,
        token_begin=frame.token_begin,
        token_count=frame.num_tokens,
        crc32c=crc,
        ready_offset=duration_from_seconds(frame.ready_seconds),
        keys=bytes(frame.keys),
        values=bytes(frame.values),
        kind=frame.kind,  # type: ignore[arg-type]
        state_tensors=state_to_proto(frame.state),
    )


@given(frames, numbers, checksums)
def test_protobuf_reads_what_is_written_here(frame: KvFrame, sequence_number: int, crc: int) -> None:
    """Another implementation gets the same message."""
    data = serialize_response(encode_frame(frame, sequence_number, crc))

    expected = prefill_service_pb2.PrefillResponse(frame=message_of(frame, sequence_number, crc))
    assert prefill_service_pb2.PrefillResponse.FromString(data) == expected


@given(frames, numbers, checksums, st.permutations(range(11)))
def test_what_protobuf_writes_is_read_here_in_any_order_of_fields(
    frame: KvFrame, sequence_number: int, crc: int, order: list[int]
) -> None:
    """Each field may be written anywhere, as in all of protobuf."""
    message = message_of(frame, sequence_number, crc)
    parts = [kv_pb2.KvFrame() for _ in range(11)]
    for part, (field, _) in zip(parts, message.ListFields(), strict=False):
        if field.name == "state_tensors":
            part.state_tensors.extend(message.state_tensors)
        elif field.message_type is None:
            setattr(part, field.name, getattr(message, field.name))
        else:
            getattr(part, field.name).CopyFrom(getattr(message, field.name))
    inner = b"".join(parts[index].SerializeToString() for index in order)
    length = len(inner)
    data = b"\x12" + bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14]) + inner

    assert parse_response(data) == ReceivedFrame(frame, sequence_number, crc)


@given(frames, st.data())
def test_damaged_bytes_are_read_as_protobuf_reads_them(frame: KvFrame, data: st.DataObject) -> None:
    """Cut, changed or lengthened: either both refuse them, or both see the same."""
    encoded = bytearray(serialize_response(encode_frame(frame, 3, 7)))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, min(40, len(encoded) - 1)))] = data.draw(st.integers(0, 255))
    damaged = bytes(encoded[: data.draw(st.integers(1, len(encoded)))]) + data.draw(st.binary(max_size=3))
    try:
        expected = prefill_service_pb2.PrefillResponse.FromString(damaged)
    except DecodeError:
        with pytest.raises(DecodeError):
            parse_response(damaged)
        return

    response = parse_response(damaged)

    if isinstance(response, ReceivedFrame):
        assert expected.WhichOneof("element") == "frame"
        received = response.frame
        assert (received.keys, received.values) == (expected.frame.keys, expected.frame.values)
        assert (received.layer_begin, received.num_layers) == (expected.frame.layer_begin, expected.frame.layer_count)
        assert (received.token_begin, received.num_tokens) == (expected.frame.token_begin, expected.frame.token_count)
        assert (response.sequence_number, response.crc32c) == (expected.frame.sequence_number, expected.frame.crc32c)
    else:
        assert response == expected


def test_other_messages_pass_as_they_are() -> None:
    """Layout, first token and summary are protobuf's business."""
    summary = prefill_service_pb2.PrefillResponse(summary=kv_pb2.KvSummary(frame_count=3))

    assert parse_response(serialize_response(summary)) == summary
    assert serialize_response(EncodedFrame((b"in ", memoryview(b"parts")))) == b"in parts"


@pytest.mark.parametrize(("had_room_at", "ready_seconds"), [(-math.inf, 1.0), (100.5, 1.0), (102.25, 2.25)])
def test_a_frame_is_ready_when_the_receiver_has_room_for_it(had_room_at: float, ready_seconds: float) -> None:
    """What a receiver holds back is no part of the time that the link takes, wherever the sender waits."""
    borrowed = create_autospec(Borrowed, instance=True, had_room_at=had_room_at)
    borrowed.place.return_value = 0
    frame = KvFrame(0, 1, 0, 1, b"k" * 64, b"v" * 64, ready_seconds=1.0)

    response = parse_response(serialize_response(SharedMemoryWriter(borrowed, 100.0).encode(frame, 0, 0, None, None)))

    assert isinstance(response, ReceivedFrame)
    assert response.frame.ready_seconds == ready_seconds


def test_a_received_frame_is_a_view_of_its_message() -> None:
    """The payload is not copied."""
    data = serialize_response(encode_frame(KvFrame(0, 1, 0, 1, b"k" * 64, b"v" * 64), 0, 0))

    response = parse_response(data)

    assert isinstance(response, ReceivedFrame)
    assert isinstance(response.frame.keys, memoryview)
    assert response.frame.keys.obj is data


def test_a_frame_that_does_not_say_what_it_holds_has_keys_and_values() -> None:
    """So senders wrote them before there was anything else."""
    said = kv_pb2.KvFrame(layer_count=1, token_count=1, keys=b"k", values=b"v")

    response = parse_response(prefill_service_pb2.PrefillResponse(frame=said).SerializeToString())

    assert isinstance(response, ReceivedFrame)
    assert response.frame.kind is FrameKind.KV


@pytest.mark.parametrize("number", [1, 127, 128, 16_383, 16_384])
def test_numbers_are_written_in_as_few_bytes_as_protobuf_needs(number: int) -> None:
    """Lengths of frames are sums of such lengths."""
    assert kv_pb2.KvFrame(layer_begin=number).SerializeToString()[1:] == _varint(number)
    assert _read_varint(_varint(number) + b"\x01", 0) == (number, len(_varint(number)))


@pytest.mark.parametrize("data", [b"\x0a" + b"\xff" * 11, b"\x0a\xff", b"\x0a", b"\xff" * 20])
def test_numbers_without_an_end_are_no_message(data: bytes) -> None:
    """Neither beyond 64 bits nor beyond the message."""
    with pytest.raises(DecodeError):
        parse_response(data)
