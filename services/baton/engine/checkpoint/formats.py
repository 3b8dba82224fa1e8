"""Formats of packed weights other than MLX's: what their numbers stand for, in float32, and which variants are served.

Each reader returns the weights of packed modules by their names in the unquantised folder; the others stay plain. What
a format leaves open is checked in config.json and headers, before anything is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from baton.engine.checkpoint.quantization import E2M1, Affine, Float8, powers_of_two, unpack_codes
from baton.engine.checkpoint.tensor_files import Array, Floats, StoredTensor
from baton.engine.checkpoint.weights import PackedRows, Rows, Weight, plain
from baton.errors import ConfigurationError

Stored = Mapping[str, StoredTensor]
Found = Iterator[tuple[str, Weight, tuple[str, ...]]]
"""Name and weight of each packed tensor, and the names of the tensors that it is made of."""

_FP8_BLOCK = 128
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the codes of eight outputs lie in a word."""
_ADVICE = "take the model in MLX's format (mlx-community), or unquantised"


class _UnservedError(Exception):
    """Says which field of quantization_config is what is not served."""


def read_packed(model: str, config: Mapping[str, Any], stored: Stored) -> dict[str, Weight]:
    """Return all tensors of a quantized folder; raise ConfigurationError naming the field, and what to use instead."""
    told: Mapping[str, Any] = config["quantization_config"]
    method = told.get("quant_method")
    try:
        if method not in _READERS:
            raise _UnservedError(f"quant_method: expected one of {', '.join(_READERS)}, got {method!r}")
        found = list(_READERS[method](told, stored))
    except _UnservedError as error:
        raise ConfigurationError(f"model {model}: quantization_config.{error}: {_ADVICE}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = f"quantization_config: {method}: its tensors are not those of the format: {error!r}"
        raise ConfigurationError(f"model {model}: {problem}: {_ADVICE}") from error
    parts = {part for _, _, names in found for part in names}
    return {name: plain(name, tensor) for name, tensor in stored.items() if name not in parts} | {
        name: weight for name, weight, _ in found
    }


def _of_mxfp4(_told: Mapping[str, Any], stored: Stored) -> Found:
    """OpenAI's: bytes of two codes, the first in the low half, and exponents of groups of 32."""
    for name in [name for name in stored if name.endswith("_blocks")]:
        base = name.removesuffix("_blocks")
        blocks, exponents = stored[name], stored[f"{base}_scales"]
        *sizes, num_groups, num_bytes = blocks.shape
        _check(tuple(exponents.shape) == (*sizes, num_groups), f"{base}_scales", exponents.shape)

        def read(rows: Rows, blocks: StoredTensor = blocks, exponents: StoredTensor = exponents) -> Floats:
            codes = unpack_codes(blocks.array().reshape(-1, *blocks.shape[-2:])[rows], 4)
            numbers = E2M1[codes] * powers_of_two(exponents.matrix()[rows])[..., None]
            return numbers.reshape(len(numbers), -1)

        shape = (*sizes, num_groups * num_bytes * 2)
        yield base, Weight(shape, "F32", read, is_turned=True), (name, f"{base}_scales")


def _of_fp8(told: Mapping[str, Any], stored: Stored) -> Found:
    """Floats of 8 bits with 4 of exponent, and a factor for each square of 128 (DeepSeek), or tensor (Mistral)."""
    is_whole = told.get("weight_block_size") is None
    _check(
        is_whole or told["weight_block_size"] == [_FP8_BLOCK] * 2, "weight_block_size", told.get("weight_block_size")
    )
    for name in [name for name in stored if name.endswith(".weight_scale_inv")]:
        base = name.removesuffix("_scale_inv")
        codes, scales = stored[base], stored[name]
        expected = () if is_whole else tuple(math.ceil(size / _FP8_BLOCK) for size in codes.shape)
        is_expected = scales.shape in (expected, (1,)) if is_whole else scales.shape == expected
        _check(is_expected and codes.dtype == "F8_E4M3", name, scales.shape)

        def read(rows: Rows, codes: StoredTensor = codes, scales: StoredTensor = scales) -> Floats:
            if is_whole:
                return codes.floats(codes.array()[rows]) * scales.floats(scales.array()).reshape(-1)
            blocks = np.arange(codes.shape[0])[rows] // _FP8_BLOCK
            factors = np.repeat(scales.floats(scales.array()[blocks]), _FP8_BLOCK, axis=1)
            return codes.floats(codes.array()[rows]) * factors[:, : codes.shape[1]]

        packed = PackedRows(codes, scales, None, Float8())
        names = (base, name, f"{base.removesuffix('weight')}activation_scale")
        yield base, Weight(codes.shape, "F32", read, packed), names


def _of_compressed_tensors(told: Mapping[str, Any], stored: Stored) -> Found:
    """Format `pack-quantized` of vLLM: whole numbers of 4 or 8 bits, offset by half, the lowest bits first."""
    _expect(told, "format", "pack-quantized")
    groups = list(told["config_groups"].values())
    _check(len(groups) == 1, "config_groups", f"{len(groups)} groups")
    weights = groups[0]["weights"]
    for field, expected in (("type", "int"), ("symmetric", True), ("dynamic", False)):
        _expect(weights, field, expected)
    _check(weights.get("actorder") in (None, False, "static", "weight"), "actorder", weights.get("actorder"))
    _check(not groups[0].get("input_activations"), "input_activations", groups[0].get("input_activations"))
    bits = int(weights["num_bits"])
    _check(bits in (4, 8), "num_bits", bits)
    for name in [name for name in stored if name.endswith(".weight_packed")]:
        base = name.removesuffix("_packed")
        words, scales = stored[name], stored[f"{base}_scale"]
        _check(f"{base}_g_idx" not in stored and f"{base}_zero_point" not in stored, base, "g_idx or zero_point")

        def read(rows: Rows, words: StoredTensor = words, scales: StoredTensor = scales) -> Floats:
            codes = unpack_codes(_bytes(words.array()[rows]), bits).astype(np.float32) - (1 << bits - 1)
            return _scaled(codes, scales.floats(scales.matrix()[rows]))

        shape = (words.shape[0], words.shape[1] * 32 // bits)
        packed = PackedRows(words, scales, None, Affine(shape[1] // scales.shape[1], bits))
        yield base, Weight(shape, scales.dtype, read, packed), (name, f"{base}_scale", f"{base}_shape")


def _of_awq(told: Mapping[str, Any], stored: Stored) -> Found:
    """(code - zero) * scale, packed along the outputs."""
    _expect(told, "bits", 4)
    _check(str(told.get("version", "gemm")).lower() == "gemm", "version", told.get("version"))
    for base, words, zeros, scales in _columns(stored):

        def read(rows: Rows, parts: tuple[StoredTensor, ...] = (words, zeros, scales)) -> Floats:
            outputs = np.arange(parts[2].shape[1])[rows]
            codes, zero = (_nibbles_of_columns(part.array(), outputs) for part in parts[:2])
            return _scaled(codes, parts[2].floats(parts[2].array()[:, outputs]).T, zero)

        yield f"{base}.weight", Weight((scales.shape[1], words.shape[0]), "F32", read), _names(base)


def _of_gptq(told: Mapping[str, Any], stored: Stored) -> Found:
    """(code - zero - 1) * scale, packed along the inputs; version 2 has no 1."""
    bits, is_v2 = int(told["bits"]), told.get("checkpoint_format") == "gptq_v2"
    _check(bits in (4, 8), "bits", bits)
    _check(not told.get("desc_act"), "desc_act", told.get("desc_act"))
    for base, words, zeros, scales in _columns(stored):
        num_inputs = words.shape[0] * 32 // bits
        order = stored.get(f"{base}.g_idx")
        if order is not None:
            is_plain = np.array_equal(order.array(), np.arange(num_inputs) // (num_inputs // scales.shape[0]))
            _check(is_plain, f"{base}.g_idx", "inputs in the order of activations")

        def read(rows: Rows, parts: tuple[StoredTensor, ...] = (words, zeros, scales)) -> Floats:
            outputs = np.arange(parts[2].shape[1])[rows]
            codes = unpack_codes(_bytes(parts[0].array()[:, outputs].T), bits)
            zero = unpack_codes(_bytes(parts[1].array()), bits)[:, outputs].T + np.float32(0 if is_v2 else 1)
            return _scaled(codes, parts[2].floats(parts[2].array()[:, outputs]).T, zero)

        yield f"{base}.weight", Weight((scales.shape[1], num_inputs), "F32", read), _names(base)


_READERS: dict[Any, Callable[[Mapping[str, Any], Stored], Found]] = {
    "mxfp4": _of_mxfp4,
    "fp8": _of_fp8,
    "compressed-tensors": _of_compressed_tensors,
    "awq": _of_awq,
    "gptq": _of_gptq,
}


def _columns(stored: Stored) -> Iterator[tuple[str, StoredTensor, StoredTensor, StoredTensor]]:
    """Yield the name of each module that AutoAWQ or AutoGPTQ packed, and its codes, zeros and scales."""
    for name in [name for name in stored if name.endswith(".qweight")]:
        base = name.removesuffix(".qweight")
        yield base, stored[name], stored[f"{base}.qzeros"], stored[f"{base}.scales"]


def _names(base: str) -> tuple[str, ...]:
    return tuple(f"{base}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))


def _nibbles_of_columns(words: Array, outputs: Array) -> Array:
    """Return codes [num_outputs, num_rows] of some outputs, of words [num_rows, all outputs / 8] of AWQ."""
    shifts = 4 * np.array(_AWQ_ORDER)[outputs % 8]
    codes: Array = (words[:, outputs // 8].view(np.uint32) >> shifts & 15).T
    return codes


def _bytes(words: Array) -> Array:
    return np.ascontiguousarray(words).view(np.uint8)


def _scaled(codes: Array, scales: Floats, zeros: Array | float = 0.0) -> Floats:
    """Return (codes - zeros) * scales: [num_rows, num_inputs], scales and zeros by groups of inputs."""
    groups = codes.astype(np.float32).reshape(len(codes), scales.shape[1], -1)
    numbers: Floats = (groups - np.asarray(zeros, np.float32)[..., None]) * scales[..., None]
    return numbers.reshape(len(codes), -1)


def _expect(told: Mapping[str, Any], field: str, expected: object) -> None:
    if told.get(field) != expected:
        raise _UnservedError(f"{field}: expected {expected}, got {told.get(field)!r}")


def _check(is_served: bool, field: str, got: object) -> None:
    if not is_served:
        raise _UnservedError(f"{field}: {got} is not served")
