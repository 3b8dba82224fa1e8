"""In what a cache can travel, and how many bytes that takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from baton.engine.runners.torch.kv_codec import TorchCodec
from baton.errors import InvalidFieldError
from baton.kv.kv_format import (
    KvDtype,
    KvLayout,
    LayerSpec,
    Packed,
    WireCodec,
    WireFormat,
    check_wire,
    holds_exactly,
    is_kept_exactly,
    sendable_dtypes,
    token_bytes,
    wire_dtypes,
)
from baton.kv.numpy_codec import NumpyCodec
from baton.kv.stream import KvFrame, KvProgress, StreamLedger, pack_frame, unpack_frame

F32, F16, BF16 = KvDtype.FLOAT32, KvDtype.FLOAT16, KvDtype.BFLOAT16
INT8, AFFINE8, FP8 = KvDtype.INT8, KvDtype.AFFINE8, KvDtype.FP8
LAYOUT = KvLayout("m", "a" * 32, "", (LayerSpec(2, 128, 64), LayerSpec(1, 128, 64, 32)), BF16)
NARROW = replace(LAYOUT, layers=(LayerSpec(2, 96, 64),))


@pytest.mark.parametrize(
    ("layout", "dtypes"),
    [
        (LAYOUT, (BF16, INT8, AFFINE8, FP8)),
        (replace(LAYOUT, dtype=F16), (F16, INT8, AFFINE8, FP8)),
        (replace(LAYOUT, dtype=F32), (F32, BF16, F16, INT8, AFFINE8, FP8)),
        (NARROW, (BF16, INT8, FP8)),
    ],
)
def test_a_cache_travels_in_its_own_format_or_a_smaller_one(layout: KvLayout, dtypes: tuple[KvDtype, ...]) -> None:
    """Its own comes first: it loses nothing."""
    assert wire_dtypes(layout) == dtypes


@pytest.mark.parametrize(("dtype", "others"), [(BF16, (F16,)), (F16, (BF16,)), (F32, ())])
def test_a_cache_can_be_sent_to_others_of_its_size_too(dtype: KvDtype, others: tuple[KvDtype, ...]) -> None:
    """Which have another format."""
    layout = replace(LAYOUT, dtype=dtype)

    assert sendable_dtypes(layout) == (*wire_dtypes(layout), *others)


@pytest.mark.parametrize(
    ("sender", "receiver", "wire"),
    [(BF16, F16, F16), (F16, BF16, BF16), (F32, BF16, BF16), (BF16, F32, BF16), (F16, F32, F16), (F32, F16, INT8)],
)
def test_caches_of_different_formats_meet_in_one(sender: KvDtype, receiver: KvDtype, wire: KvDtype) -> None:
    """Either end packs or unpacks."""
    for own, other in ((sender, receiver), (receiver, receiver)):
        check_wire(replace(LAYOUT, dtype=own), WireFormat(wire, wire), other)


@pytest.mark.parametrize(
    ("sender", "receiver", "wire", "cause"),
    [(BF16, F32, F32, "no smaller"), (BF16, F32, F16, "no smaller"), (BF16, F32, AFFINE8, "scales of the cache")],
)
def test_caches_of_different_formats_do_not_meet_where_nothing_is_gained(
    sender: KvDtype, receiver: KvDtype, wire: KvDtype, cause: str
) -> None:
    """The receiver can widen what it gets; scales of a cache's format are of one cache."""
    with pytest.raises(InvalidFieldError, match=cause):
        check_wire(replace(LAYOUT, dtype=sender), WireFormat(wire, wire), receiver)


@pytest.mark.parametrize("codec", [NumpyCodec(), TorchCodec()], ids=["numpy", "torch"])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_every_16_bit_number_arrives_unchanged_in_a_wider_cache(codec: WireCodec, dtype: KvDtype) -> None:
    """Infinities and the smallest ones included."""
    words = np.arange(1 << 16, dtype="<u2")
    kept = words if dtype is BF16 else words.view("<f2")
    expected = (words.astype("<u4") << 16).view("<f4") if dtype is BF16 else kept.astype("<f4")
    wide = np.frombuffer(codec.unpack(Packed(kept.tobytes(), b""), F32, dtype, 64), "<f4")

    assert np.array_equal(wide, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("layout", "wire", "field", "cause"),
    [
        (LAYOUT, WireFormat(F32, BF16), "wire_dtype", "no smaller"),
        (LAYOUT, WireFormat(BF16, F16), "value_wire_dtype", "no smaller"),
        (NARROW, WireFormat(AFFINE8, AFFINE8), "wire_dtype", "96"),
        (NARROW, WireFormat(BF16, AFFINE8), "value_wire_dtype", "96"),
    ],
)
def test_what_cannot_travel_is_refused_by_the_name_of_the_field(
    layout: KvLayout, wire: WireFormat, field: str, cause: str
) -> None:
    """Keys and values apart."""
    with pytest.raises(InvalidFieldError, match=cause) as caught:
        check_wire(layout, wire)

    assert caught.value.field == field


@pytest.mark.parametrize(
    ("wire", "key_bytes", "value_bytes"),
    [
        (WireFormat(BF16, BF16), 3 * 256, 3 * 128),
        (WireFormat(INT8, INT8), 3 * (128 + 4), 3 * (64 + 4)),
        (WireFormat(BF16, FP8), 3 * 256, 3 * (64 + 4)),
        (WireFormat(AFFINE8, AFFINE8), 3 * (128 + 8), 3 * (64 + 4)),
    ],
)
def test_the_bytes_of_a_position_count_the_scales(wire: WireFormat, key_bytes: int, value_bytes: int) -> None:
    """One float32 per row, or scale and bias of the cache's format per 64 elements."""
    assert token_bytes(LAYOUT, wire) == (key_bytes, value_bytes)


@pytest.mark.parametrize("wire", [WireFormat(INT8, INT8), WireFormat(BF16, AFFINE8), WireFormat(FP8, BF16)])
def test_a_packed_frame_passes_the_ledger_of_its_stream_and_no_other(wire: WireFormat) -> None:
    """And comes back in the sizes of the cache, layer by layer."""
    layout = replace(LAYOUT, wire=wire, layers=LAYOUT.layers[:1] * 2)
    plain = KvFrame(0, 2, 0, 5, bytes(range(250)) * 20 + b"\0" * 120, bytes(2 * 2 * 5 * 64 * 2))
    frame = pack_frame(NumpyCodec(), layout, plain)
    ledger = StreamLedger(layout, KvProgress.begin(layout, 0, 5))
    number, crc = ledger.append(frame)
    back = unpack_frame(NumpyCodec(), layout, frame)

    StreamLedger(layout, KvProgress.begin(layout, 0, 5)).enter(frame, number, crc)
    assert frame.num_bytes == ledger.totals.num_bytes == 5 * sum(token_bytes(layout, wire))
    assert (len(back.keys), len(back.values)) == (len(plain.keys), len(plain.values))
    assert not back.key_scales
    assert not back.value_scales


@pytest.mark.parametrize(
    ("sender", "wire", "receiver", "expected"),
    [
        (BF16, (BF16, BF16), BF16, True),
        (BF16, (BF16, BF16), F32, True),
        (F32, (F32, F32), BF16, False),
        (F32, (F32, BF16), F32, False),
        (BF16, (BF16, INT8), BF16, False),
    ],
)
def test_numbers_are_kept_where_no_step_rounds_them(
    sender: KvDtype, wire: tuple[KvDtype, KvDtype], receiver: KvDtype, *, expected: bool
) -> None:
    """Neither what the sender packs nor what the receiver stores."""
    assert is_kept_exactly(sender, WireFormat(*wire), receiver) is expected


def test_a_float32_cache_holds_floats_and_no_codes() -> None:
    """Codes of 8-bit formats mean what their scales say."""
    held = [holds_exactly(KvDtype.FLOAT32, dtype) for dtype in (KvDtype.FLOAT32, KvDtype.FLOAT16, BF16, INT8)]

    assert held == [True, True, True, False]
