"""The ledger of a KV stream: valid streams pass, every damage is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.errors import StreamBrokenError
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec, StateTensor, WireFormat
from baton.kv.numpy_codec import NumpyCodec
from baton.kv.stream import (
    FrameKind,
    KvFrame,
    KvProgress,
    StreamLedger,
    StreamTotals,
    frame_groups,
    header_crc32c,
    pack_frame,
    payload_crc32c,
    unpack_frame,
)

NARROW, WIDE = LayerSpec(1, 4, 2), LayerSpec(2, 4, 2)
LAYOUT = KvLayout("m", "a" * 32, "", (NARROW, NARROW, NARROW, WIDE), KvDtype.FLOAT16)
BEGIN, END = 3, 17
OWED = KvProgress.begin(LAYOUT, BEGIN, END)


@dataclass(frozen=True)
class Sent:
    """A frame with the number and the checksum that it travels with."""

    frame: KvFrame
    number: int
    crc: int


def frame_of(layers: range, token_begin: int, num_tokens: int, layout: KvLayout = LAYOUT) -> KvFrame:
    """Return a frame with bytes that differ from frame to frame."""
    specs = [layout.layers[layer] for layer in layers]
    per_token = num_tokens * layout.dtype.num_bytes
    key_bytes = sum(spec.num_kv_heads * spec.key_head_dim for spec in specs) * per_token
    value_bytes = sum(spec.num_kv_heads * spec.value_head_dim for spec in specs) * per_token
    fill = bytes([(16 * layers.start + token_begin) % 256])
    return KvFrame(layers.start, len(layers), token_begin, num_tokens, fill * key_bytes, fill * value_bytes)


def send(frames: Sequence[KvFrame], layout: KvLayout = LAYOUT) -> tuple[list[Sent], StreamTotals]:
    """Number and checksum frames as a sender does."""
    ledger = StreamLedger(layout, KvProgress.begin(layout, BEGIN, END))
    stream = [Sent(frame, *ledger.append(frame)) for frame in frames]
    return stream, ledger.totals


def receive(stream: Sequence[Sent], totals: StreamTotals) -> StreamTotals:
    """Take a stream as a receiver does."""
    ledger = StreamLedger(LAYOUT, OWED)
    for sent in stream:
        ledger.enter(sent.frame, sent.number, sent.crc)
    ledger.close(totals)
    return ledger.totals


@st.composite
def frame_lists(draw: st.DrawFn) -> list[KvFrame]:
    """Return the frames of a whole stream: any chunks, any layers per frame in each."""
    frames, token = [], BEGIN
    while token < END:
        num_tokens = draw(st.integers(1, END - token))
        groups = frame_groups(LAYOUT, draw(st.integers(1, 5)))
        frames += [frame_of(group, token, num_tokens) for group in groups]
        token += num_tokens
    return frames


STREAM, TOTALS = send([frame_of(group, token, 7) for token in (3, 10) for group in frame_groups(LAYOUT, 2)])


@given(frame_lists())
def test_a_valid_stream_is_accepted_in_any_grouping(frames: list[KvFrame]) -> None:
    """Both sides count the same."""
    stream, totals = send(frames)

    assert receive(stream, totals) == totals
    assert totals.num_bytes == sum(frame.num_bytes for frame in frames) == (END - BEGIN) * LAYOUT.num_token_bytes()
    assert (totals.token_begin, totals.token_end) == (BEGIN, END)


@settings(max_examples=60)
@given(frame_lists(), st.data())
def test_a_dropped_doubled_or_swapped_frame_is_refused(frames: list[KvFrame], data: st.DataObject) -> None:
    """Even where the damage is at the end of the stream."""
    stream, totals = send(frames)
    index = data.draw(st.integers(0, len(stream) - 1))
    swapped = [*stream[:index], *reversed(stream[index : index + 2]), *stream[index + 2 :]]
    damaged = [stream[:index] + stream[index + 1 :], stream[: index + 1] + stream[index:], stream[:index]]
    if index < len(stream) - 1:
        damaged.append(swapped)

    for other in damaged:
        with pytest.raises(StreamBrokenError):
            receive(other, totals)


@settings(max_examples=40)
@given(frame_lists(), st.data())
def test_a_frame_lost_without_trace_in_the_numbers_is_refused(frames: list[KvFrame], data: st.DataObject) -> None:
    """A sender that forgot a frame numbers and counts the rest consistently."""
    index = data.draw(st.integers(0, len(frames) - 1))
    with pytest.raises(StreamBrokenError):
        receive(*send(frames[:index] + frames[index + 1 :]))


@given(st.integers(0, len(STREAM) - 1), st.data())
def test_a_flipped_bit_is_refused(index: int, data: st.DataObject) -> None:
    """Anywhere in K or V."""
    frame = STREAM[index].frame
    is_key = data.draw(st.booleans())
    payload = bytearray(frame.keys if is_key else frame.values)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    changed = replace(frame, keys=bytes(payload)) if is_key else replace(frame, values=bytes(payload))
    damaged = replace(STREAM[index], frame=changed)

    with pytest.raises(StreamBrokenError, match="checksum"):
        receive([*STREAM[:index], damaged, *STREAM[index + 1 :]], TOTALS)


def test_exchanged_keys_and_values_are_refused() -> None:
    """Where they have one size, the checksum tells them apart."""
    layout = KvLayout("m", "a" * 32, "", (LayerSpec(1, 4, 4),), KvDtype.FLOAT16)
    frame = KvFrame(0, 1, BEGIN, 1, b"k" * 8, b"v" * 8)
    ledger = StreamLedger(layout, KvProgress.begin(layout, BEGIN, BEGIN + 1))

    with pytest.raises(StreamBrokenError, match="checksum"):
        ledger.enter(replace(frame, keys=frame.values, values=frame.keys), 0, payload_crc32c(frame.keys, frame.values))


FIRST = frame_of(range(2), BEGIN, 7)


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        (replace(FIRST, keys=FIRST.keys[:-1]), "bytes of keys"),
        (replace(FIRST, values=FIRST.values + b"x"), "bytes of values"),
        (replace(FIRST, keys=b"", values=b""), "bytes of keys"),
        (replace(FIRST, key_scales=b"1234"), "bytes of key_scales"),
        (replace(FIRST, value_scales=b"1"), "bytes of value_scales"),
        (replace(FIRST, num_layers=0), "not in the model"),
        (replace(FIRST, num_layers=-1), "not in the model"),
        (replace(FIRST, layer_begin=-1), "not in the model"),
        (replace(FIRST, layer_begin=4, num_layers=1), "not in the model"),
        (replace(FIRST, num_layers=5), "not in the model"),
        (replace(FIRST, num_tokens=0), "positions"),
        (replace(FIRST, num_tokens=-7), "positions"),
        (replace(FIRST, num_tokens=END - BEGIN + 1), "reach past 17"),
        (replace(FIRST, token_begin=BEGIN - 1), "positions from 2 arrived where 3 was due"),
        (replace(FIRST, token_begin=BEGIN + 1), "positions from 4 arrived where 3 was due"),
        (replace(FIRST, token_begin=-1), "positions"),
        (frame_of(range(2, 4), BEGIN, 7), "differ"),
    ],
)
def test_a_frame_with_a_wrong_size_or_range_is_refused(frame: KvFrame, cause: str) -> None:
    """Although its number and checksum are right; nothing of it is entered."""
    ledger = StreamLedger(LAYOUT, OWED)

    with pytest.raises(StreamBrokenError, match=cause):
        ledger.enter(frame, 0, payload_crc32c(frame.keys, frame.values))

    assert ledger.totals == StreamTotals(0, 0, 0, BEGIN, BEGIN)


WRONG_TOTALS: dict[str, Callable[[StreamTotals], StreamTotals]] = {
    "num_frames": lambda totals: replace(totals, num_frames=totals.num_frames + 1),
    "num_bytes": lambda totals: replace(totals, num_bytes=totals.num_bytes - 1),
    "frames_crc32c": lambda totals: replace(totals, frames_crc32c=totals.frames_crc32c ^ 1),
    "token_begin": lambda totals: replace(totals, token_begin=totals.token_begin + 1),
    "token_end": lambda totals: replace(totals, token_end=totals.token_end - 1),
}


@pytest.mark.parametrize("field", WRONG_TOTALS)
def test_a_wrong_total_is_refused(field: str) -> None:
    """Although every frame was right."""
    with pytest.raises(StreamBrokenError, match="promised"):
        receive(STREAM, WRONG_TOTALS[field](TOTALS))


def test_the_checksums_are_those_of_the_proto() -> None:
    """CRC-32C of the payload, and of the frames' checksums as 4 little-endian bytes each."""
    assert crc32c.crc32c(b"123456789") == 0xE3069283
    assert payload_crc32c(b"1234", b"56789") == 0xE3069283
    assert TOTALS.frames_crc32c == crc32c.crc32c(b"".join(sent.crc.to_bytes(4, "little") for sent in STREAM))


@pytest.mark.parametrize(
    ("layers_per_frame", "groups"),
    [
        (1, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (2, [range(2), range(2, 3), range(3, 4)]),
        (3, [range(3), range(3, 4)]),
        (99, [range(3), range(3, 4)]),
    ],
)
def test_frames_group_layers_of_one_shape(layers_per_frame: int, groups: list[range]) -> None:
    """A layer with other heads begins another frame."""
    assert frame_groups(LAYOUT, layers_per_frame) == groups


KEY = 0xABCD


@st.composite
def owed_parts(draw: st.DrawFn) -> KvProgress:
    """Return what a stream may owe that resumes another: any begin in every layer."""
    return KvProgress(tuple(draw(st.integers(BEGIN, END)) for _ in LAYOUT.layers), END)


@st.composite
def tilings(draw: st.DrawFn, owed: KvProgress) -> list[KvFrame]:
    """Return frames that bring what is owed: of any layer next, as many positions as please."""
    next_tokens, frames = list(owed.next_tokens), []
    while open_layers := [layer for layer, token in enumerate(next_tokens) if token < END]:
        layer = draw(st.sampled_from(open_layers))
        num_tokens = draw(st.integers(1, END - next_tokens[layer]))
        frames.append(frame_of(range(layer, layer + 1), next_tokens[layer], num_tokens))
        next_tokens[layer] += num_tokens
    return frames


@settings(deadline=None)
@given(st.data())
def test_frames_that_tile_what_is_owed_are_accepted_and_no_others(data: st.DataObject) -> None:
    """Per layer every position from its begin to the end, once; a frame more, less or elsewhere breaks the stream."""
    owed = data.draw(owed_parts())
    frames = data.draw(tilings(owed))
    if frames:
        index = data.draw(st.integers(0, len(frames) - 1))
        frame = frames[index]
        shifted = frame_of(range(frame.layer_begin, frame.layer_begin + 1), frame.token_begin + 1, frame.num_tokens)
        damages = [frames[:index] + frames[index + 1 :], [*frames, frame], [*frames[:index], shifted]]
    else:
        damages = [[frame_of(range(1), END - 1, 1)]]

    assert replay(frames, owed).is_complete
    for damaged in damages:
        with pytest.raises(StreamBrokenError):
            replay(damaged, owed)


def replay(frames: Sequence[KvFrame], owed: KvProgress) -> KvProgress:
    """Enter frames and the end that says what they are; return what there is then."""
    ledger = StreamLedger(LAYOUT, owed, KEY)
    for frame in frames:
        ledger.append(frame)
    ledger.close(ledger.totals)
    return ledger.progress


@settings(deadline=None)
@given(st.data())
def test_the_progress_of_a_broken_stream_is_owed_less_what_came(data: st.DataObject) -> None:
    """So the next stream brings the rest, and nothing twice."""
    owed = data.draw(owed_parts())
    frames = data.draw(tilings(owed))
    cut = data.draw(st.integers(0, len(frames)))
    first = StreamLedger(LAYOUT, owed, KEY)
    for frame in frames[:cut]:
        first.append(frame)
    second = StreamLedger(LAYOUT, first.progress, KEY)
    for frame in frames[cut:]:
        second.append(frame)

    second.close(second.totals)
    num_bytes = first.totals.num_bytes + second.totals.num_bytes
    assert num_bytes == owed.missing_bytes(LAYOUT)


def test_nothing_counts_of_a_broken_stream_without_a_key() -> None:
    """Its frames prove their bytes, not their place: a changed layer number may show only later."""
    ledger = StreamLedger(LAYOUT, OWED)
    ledger.enter(STREAM[0].frame, 0, STREAM[0].crc)

    assert ledger.progress == OWED


@pytest.mark.parametrize(
    "field", ["sequence_number", "layer_begin", "token_begin", "num_tokens", "crc", "key", "absent"]
)
def test_a_frame_that_does_not_prove_its_place_is_refused(field: str) -> None:
    """Whatever of its header was changed, or if it is a frame of another stream."""
    frame, crc = STREAM[0].frame, STREAM[0].crc
    header: int | None = header_crc32c(KEY, 0, frame, crc)
    if field in ("layer_begin", "token_begin", "num_tokens"):
        header = header_crc32c(KEY, 0, replace(frame, **{field: getattr(frame, field) + 1}), crc)
    elif field == "sequence_number":
        header = header_crc32c(KEY, 1, frame, crc)
    elif field == "crc":
        header = header_crc32c(KEY, 0, frame, crc ^ 1)
    elif field == "key":
        header = header_crc32c(KEY + 1, 0, frame, crc)
    elif field == "absent":
        header = None
    ledger = StreamLedger(LAYOUT, OWED, KEY)

    with pytest.raises(StreamBrokenError, match="header"):
        ledger.enter(frame, 0, crc, None, header)

    assert ledger.progress == OWED


def test_the_checksum_of_a_header_is_that_of_the_proto() -> None:
    """Seven numbers, little-endian, the second of 8 bytes and the others of 4."""
    frame = KvFrame(2, 3, 5, 7, b"", b"")
    numbers = ((KEY, 4), (11, 8), (2, 4), (3, 4), (5, 4), (7, 4), (13, 4))

    assert header_crc32c(KEY, 11, frame, 13) == crc32c.crc32c(
        b"".join(number.to_bytes(size, "little") for number, size in numbers)
    )


STATE = (StateTensor("conv", (3, 5)), StateTensor("recurrent", (2, 4, 3)))
HYBRID = KvLayout("m", "a" * 32, "", (LayerSpec(0, 0, 0, state=STATE), NARROW), KvDtype.FLOAT16)
STATE_FRAME = KvFrame(0, 1, BEGIN, END - BEGIN, bytes(4 * (15 + 24)), b"", kind=FrameKind.STATE, state=STATE)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"kind": 7}, "kind: layer 0 has frames of kind 2, not 7"),
        ({"kind": FrameKind.KV}, "kind: layer 0"),
        (
            {"num_tokens": END - BEGIN - 1},
            f"token_count: layer 0 has a state after {END - 1} positions, not after {END}",
        ),
        (
            {"token_begin": BEGIN + 1, "num_tokens": END - BEGIN - 1},
            "layer 0: positions from 4 arrived where 3 was due",
        ),
        ({"state": STATE[:1]}, "state_tensors: layer 0 has"),
        ({"state": (STATE[0], STATE[1]._replace(shape=(2, 3, 4)))}, "state_tensors: layer 0 has"),
        ({"state": (STATE[0], STATE[1]._replace(dtype=None))}, "state_tensors: layer 0 has"),
        ({"keys": bytes(4 * 38)}, "frame has 152 bytes of keys, not 156"),
        ({"values": b"1"}, "frame has 1 bytes of values, not 0"),
        ({"num_layers": 2}, r"layers \[0, 2\) differ in shape"),
    ],
)
def test_a_state_that_is_not_the_layers_is_refused_by_the_field(changes: dict[str, object], cause: str) -> None:
    """Nothing of a wrong kind, shape, size or token count is taken; the stream counts for nothing."""
    frame = replace(STATE_FRAME, **changes)  # type: ignore[arg-type]

    with pytest.raises(StreamBrokenError, match=cause):
        StreamLedger(HYBRID, KvProgress.begin(HYBRID, BEGIN, END)).append(frame)


def test_a_state_is_complete_in_one_frame() -> None:
    """Which stands for all positions that were owed of the layer."""
    ledger = StreamLedger(HYBRID, KvProgress.begin(HYBRID, BEGIN, END), 5)
    ledger.append(STATE_FRAME)

    assert ledger.progress.next_tokens == (END, BEGIN)
    assert KvProgress.begin(HYBRID, BEGIN, END).missing_bytes(HYBRID) - ledger.progress.missing_bytes(HYBRID) == 156


def test_a_damaged_state_is_refused() -> None:
    """By the checksum of its bytes."""
    frame = replace(STATE_FRAME, keys=bytes(155) + b"1")
    crc = payload_crc32c(STATE_FRAME.keys, b"")

    with pytest.raises(StreamBrokenError, match="wrong checksum"):
        StreamLedger(HYBRID, KvProgress.begin(HYBRID, BEGIN, END)).enter(frame, 0, crc)


def test_a_state_is_never_rounded_on_its_way() -> None:
    """Whatever K and V travel in."""
    layout = replace(HYBRID, wire=WireFormat(KvDtype.INT8, KvDtype.INT8))

    assert pack_frame(NumpyCodec(), layout, STATE_FRAME) is STATE_FRAME
    assert unpack_frame(NumpyCodec(), layout, STATE_FRAME) is STATE_FRAME
    StreamLedger(layout, KvProgress.begin(layout, BEGIN, END)).append(STATE_FRAME)
