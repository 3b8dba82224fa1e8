"""The number formats of a wire: what they lose, that all codecs mean the same, and what they cost."""

from __future__ import annotations

import time

import mlx.core as mx
import numpy as np
import pytest
import torch

from baton.engine.runners.mock.kv_codec import MockCodec
from baton.engine.runners.mock.state import kv_of, states_from, states_of
from baton.engine.runners.torch.kv_codec import TorchCodec
from baton.kv.kv_format import KvDtype, LayerSpec, Packed, WireCodec, row_bytes
from baton.kv.numpy_codec import NumpyCodec, _store

CODECS: dict[str, WireCodec] = {"numpy": NumpyCodec(), "torch": TorchCodec()}
CACHES = (KvDtype.FLOAT32, KvDtype.FLOAT16, KvDtype.BFLOAT16)
WIRES = (KvDtype.BFLOAT16, KvDtype.FLOAT16, KvDtype.INT8, KvDtype.AFFINE8, KvDtype.FP8)
PAIRS = [(cache, wire) for cache in CACHES for wire in WIRES if wire.num_bytes < cache.num_bytes]
HEAD_DIM, NUM_ROWS = 128, 700
ROUNDING = {KvDtype.FLOAT32: 2.0**-23, KvDtype.FLOAT16: 2.0**-11, KvDtype.BFLOAT16: 2.0**-8}
"""Largest relative error of a number in these formats."""


def rows_of(cache: KvDtype, *, seed: int = 3, num_rows: int = NUM_ROWS) -> torch.Tensor:
    """Return rows of very different sizes, some with an outlier channel, one of zeros."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, HEAD_DIM, generator=draw) * torch.logspace(-3, 2, num_rows)[:, None]
    rows[:, 5] *= 20
    rows[num_rows // 2] = 0
    return rows.to(getattr(torch, cache.value))


def bytes_of(rows: torch.Tensor) -> bytes:
    """Return the memory of rows."""
    return rows.contiguous().view(torch.uint8).numpy().tobytes()


def numbers(data: bytes | memoryview, dtype: KvDtype) -> torch.Tensor:
    """Return rows of a cache as float64."""
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype.value)).view(-1, HEAD_DIM).double()


def allowed_error(rows: torch.Tensor, cache: KvDtype, wire: KvDtype) -> torch.Tensor:
    """Return the bound of each element: half a step of the format, and the rounding of what travels with it."""
    rows = rows.double()
    largest = rows.abs().amax(1, keepdim=True)
    if wire is KvDtype.INT8:
        bound = largest / 127 * 0.501
    elif wire is KvDtype.FP8:  # three bits of mantissa; below the smallest normal number, a step of 2**-9 / 448
        bound = torch.maximum(rows.abs() * 2.0**-4, largest / 448 * 2.0**-10) * 1.001
    elif wire is KvDtype.AFFINE8:
        groups = rows.view(len(rows), -1, 64)
        spread = (groups.amax(2) - groups.amin(2)).repeat_interleave(64, 1)
        bound = spread / 255 * 0.501 + spread * 1.01 * ROUNDING[cache]
    else:
        bound = rows.abs() * ROUNDING[wire] + (2.0**-24 if wire is KvDtype.FLOAT16 else 0)
    return bound + rows.abs() * ROUNDING[cache] * 1.01 + 1e-30


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("cache", "wire"), PAIRS)
def test_a_row_comes_back_within_half_a_step(name: str, cache: KvDtype, wire: KvDtype) -> None:
    """Of its own scale: rows do not share one, so a large neighbour costs nothing."""
    rows, codec = rows_of(cache), CODECS[name]
    packed = codec.pack(bytes_of(rows), cache, wire, HEAD_DIM)
    error = (numbers(codec.unpack(packed, cache, wire, HEAD_DIM), cache) - rows.double()).abs()

    assert len(packed.data) + len(packed.scales) == NUM_ROWS * row_bytes(wire, cache, HEAD_DIM)
    assert (error <= allowed_error(rows, cache, wire)).all()
    assert (error[NUM_ROWS // 2] == 0).all()


@pytest.mark.parametrize(("cache", "wire"), PAIRS)
def test_what_one_codec_packs_the_other_unpacks_to_the_same_numbers(cache: KvDtype, wire: KvDtype) -> None:
    """A torch node and an MLX node agree to the last bit but for a tie."""
    packed = CODECS["torch"].pack(bytes_of(rows_of(cache)), cache, wire, HEAD_DIM)
    here, there = (numbers(codec.unpack(packed, cache, wire, HEAD_DIM), cache) for codec in CODECS.values())
    again = CODECS["numpy"].pack(bytes_of(rows_of(cache)), cache, wire, HEAD_DIM)

    assert ((here - there).abs() <= 4 * ROUNDING[cache] * here.abs().amax(1, keepdim=True)).all()
    assert (np.frombuffer(again.data, np.uint8) != np.frombuffer(packed.data, np.uint8)).mean() < 0.002


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_never_becomes_a_number(name: str, wire: KvDtype, bad: float) -> None:
    """The row shows it, so that the engine refuses to sample from it."""
    rows, codec = rows_of(KvDtype.FLOAT32), CODECS[name]
    rows[7, 11] = bad
    packed = codec.pack(bytes_of(rows), KvDtype.FLOAT32, wire, HEAD_DIM)
    back = numbers(codec.unpack(packed, KvDtype.FLOAT32, wire, HEAD_DIM), KvDtype.FLOAT32)

    assert not back[7].isfinite().all()
    assert back[8].isfinite().all()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0xFFBFFFFF])
def test_no_bits_of_a_nan_become_a_number(name: str, wire: KvDtype, bits: int) -> None:
    """CUDA makes those whose bits are all set, which rounding up would carry over into a zero."""
    rows, codec = rows_of(KvDtype.FLOAT32).numpy(), CODECS[name]
    rows.view(np.uint32)[7, 11] = bits
    packed = codec.pack(rows.tobytes(), KvDtype.FLOAT32, wire, HEAD_DIM)
    back = numbers(codec.unpack(packed, KvDtype.FLOAT32, wire, HEAD_DIM), KvDtype.FLOAT32)

    assert not back[7].isfinite().all()
    assert back[8].isfinite().all()


def test_half_a_step_goes_to_the_even_number() -> None:
    """As torch and devices round to bfloat16: a cache would drift to larger numbers otherwise."""
    halves = np.array([0x3F808000, 0x3F818000, 0x3F817FFF, 0x3F808001], np.uint32).view(np.float32)
    rows, bits = halves.reshape(1, -1), np.empty((1, 4), np.uint16)
    _store(rows, bits, KvDtype.BFLOAT16)

    assert [hex(each) for each in bits[0]] == ["0x3f80", "0x3f82", "0x3f81", "0x3f81"]


def test_every_code_of_fp8_means_what_torch_says() -> None:
    """And every number of a fine sweep is rounded to the same code."""
    codes = np.arange(256, dtype=np.uint8)
    meant = torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn).float()
    sweep = torch.linspace(-448, 448, 8 * HEAD_DIM * 32).view(-1, HEAD_DIM)
    sweep[:, 0] = 448  # so that the scale is 1
    packed = CODECS["numpy"].pack(bytes_of(sweep), KvDtype.FLOAT32, KvDtype.FP8, HEAD_DIM)
    ones = np.ones(256 // 64, "<f4").tobytes()
    read = CODECS["numpy"].unpack(Packed(codes.tobytes(), ones), KvDtype.FLOAT32, KvDtype.FP8, 64)

    assert np.array_equal(np.frombuffer(read, "<f4"), meant.numpy(), equal_nan=True)
    assert torch.equal(torch.frombuffer(bytearray(packed.data), dtype=torch.uint8), bits_of_fp8(sweep))


def bits_of_fp8(rows: torch.Tensor) -> torch.Tensor:
    """Return torch's codes."""
    return rows.to(torch.float8_e4m3fn).view(torch.uint8).view(-1)


def test_affine8_is_what_mlx_reads_in_place() -> None:
    """Elements as MLX packs four into a word; scales and biases as its quantised cache keeps them."""
    rows = rows_of(KvDtype.FLOAT16)
    packed = CODECS["torch"].pack(bytes_of(rows), KvDtype.FLOAT16, KvDtype.AFFINE8, HEAD_DIM)
    words = mx.array(np.frombuffer(packed.data, "<u4").reshape(NUM_ROWS, -1))
    scales = mx.array(np.frombuffer(packed.scales, "<f2").reshape(NUM_ROWS, 2, -1))
    with mx.stream(mx.cpu):
        read = mx.dequantize(words, scales[:, 0], scales[:, 1], group_size=64, bits=8)
        mx.eval(read)
    own = numbers(CODECS["torch"].unpack(packed, KvDtype.FLOAT16, KvDtype.AFFINE8, HEAD_DIM), KvDtype.FLOAT16)

    difference = (torch.from_numpy(np.array(read)).double() - own).abs()
    assert (difference <= own.abs().amax(1, keepdim=True) * 2.0**-9 + 1e-6).all()  # MLX computes in half precision


@pytest.mark.parametrize("wire", [KvDtype.INT8, KvDtype.FP8])
def test_a_mock_loses_nothing_and_shows_a_wrong_byte(wire: KvDtype) -> None:
    """With as many bytes on the wire as numbers would have."""
    spec, cache, codec = LayerSpec(2, 8, 8), KvDtype.BFLOAT16, MockCodec()
    states = states_of([5, 6, 7], 0, 1)[0]
    kv = kv_of(states, spec, cache)
    keys, values = (codec.pack(data, cache, wire, 8) for data in kv)
    damaged = bytearray(keys.scales)
    damaged[-1] ^= 1
    back = kv._replace(keys=codec.unpack(keys, cache, wire, 8), values=codec.unpack(values, cache, wire, 8))
    wrong = kv._replace(keys=codec.unpack(Packed(keys.data, damaged), cache, wire, 8))

    assert len(keys.data) + len(keys.scales) == 2 * 3 * row_bytes(wire, cache, 8)
    assert (states_from(back, 3, spec) == states).all()
    assert (states_from(wrong, 3, spec) == states).tolist() == [True, True, False]


def test_the_cost_of_packing_is_printed() -> None:
    """Per GB of a bfloat16 cache; `pytest -s` shows it. No bound on a busy machine but that it does work."""
    data = bytes_of(rows_of(KvDtype.BFLOAT16, num_rows=16384))
    for name, codec in CODECS.items():
        for wire in (KvDtype.INT8, KvDtype.AFFINE8, KvDtype.FP8):
            started = time.process_time()
            packed = codec.pack(data, KvDtype.BFLOAT16, wire, HEAD_DIM)
            between = time.process_time()
            codec.unpack(packed, KvDtype.BFLOAT16, wire, HEAD_DIM)
            costs = [1e9 * seconds / len(data) for seconds in (between - started, time.process_time() - between)]
            print(f"{name:6} {wire.value:8} CPU-s/GB pack {costs[0]:.2f} unpack {costs[1]:.2f}")

            assert min(costs) > 0
