"""Weights that were saved in few bits: how a folder says so, and the numbers that they stand for.

An element of MLX's affine format is code * scale + bias in float32. Codes of a row are one stream of bits, the lowest
first. With scales of 16 bits the product is exact, so that the sum is rounded once, however it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from baton.engine.checkpoint.tensor_files import Array, Floats
from baton.errors import ConfigurationError
from baton.kv.numpy_codec import E4M3

E2M1: Floats = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The sixteen numbers of 4 bits with 2 of exponent and 1 of mantissa."""
_MICRO_GROUPS = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}
_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Affine:
    """How the elements of a tensor are packed."""

    group_size: int
    """Elements that share a scale and a bias."""
    bits: int

    def unpack(self, words: Array, scales: Floats, biases: Floats) -> Floats:
        """Return what rows stand for: [num_rows, num_inputs].

        `words`: [num_rows, num_inputs * bits / 32], uint32. `scales`: [num_rows, num_inputs / group_size]. `biases`:
        likewise.
        """
        groups = unpack_codes(np.ascontiguousarray(words).view(np.uint8), self.bits).astype(np.float32)
        groups = groups.reshape(*scales.shape, self.group_size)
        groups *= scales[..., None]
        groups += biases[..., None]
        return groups.reshape(len(words), -1)


@dataclass(frozen=True, slots=True)
class Micro:
    """Floats of 4 or 8 bits, with a scale of 8 for each group: mxfp4, mxfp8 and nvfp4 of MLX."""

    mode: str

    @property
    def bits(self) -> int:
        """Return the bits of an element."""
        return 8 if self.mode == "mxfp8" else 4

    @property
    def group_size(self) -> int:
        """Return the elements that share a scale."""
        return _MICRO_GROUPS[self.mode]

    def unpack(self, words: Array, scales: Array) -> Floats:
        """Return what rows stand for as `Affine.unpack` does; scales are uint8."""
        codes = unpack_codes(np.ascontiguousarray(words).view(np.uint8), self.bits)
        groups = (E4M3 if self.mode == "mxfp8" else E2M1)[codes].reshape(*scales.shape, self.group_size)
        factors = E4M3[scales] if self.mode == "nvfp4" else powers_of_two(scales)
        numbers: Floats = groups * factors[..., None]
        return numbers.reshape(len(words), -1)


@dataclass(frozen=True, slots=True)
class Float8:
    """Floats of 8 bits with 4 of exponent, and a factor in float32 for each square of `group_size`, or one for all."""

    group_size: int = 128
    bits: int = 8


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a folder's weights are packed; single modules may differ."""

    default: Affine | Micro
    """Of modules that are not named."""
    modules: Mapping[str, Affine | Micro]
    """Modules of their own kind, by name."""

    def of(self, module: str) -> Affine | Micro:
        """Return how a module's weight is packed, given that it is."""
        return self.modules.get(module, self.default)

    def weight_bytes(self, num_parameters: int, scale_bytes: int) -> int:
        """Return what parameters take with their scales and biases, of `scale_bytes` each where they are not of one."""
        group_bytes = 1 if isinstance(self.default, Micro) else 2 * scale_bytes
        return math.ceil(num_parameters * (self.default.bits / 8 + group_bytes / self.default.group_size))


def powers_of_two(exponents: Array) -> Floats:
    """Return 2^(e - 127) of exponents e in 8 bits, of which 255 is not a number."""
    powers = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127).astype(np.float32)
    return np.where(exponents == 255, np.float32("nan"), powers)


def unpack_codes(packed: Array, bits: int) -> Array:
    """Return codes [..., num_codes] of bytes [..., num_codes * bits / 8], whole numbers of 8 bits.

    Args:
        packed: uint8; the codes of a row are one stream of bits, the lowest first, and a multiple of 8.
        bits: Of a code, 1 to 8.
    """
    if bits == 8:
        return packed
    eights = packed.reshape(*packed.shape[:-1], -1, bits)  # eight codes take `bits` bytes
    codes = np.empty((*eights.shape[:-1], 8), np.uint8)
    for place in range(8):
        byte, shift = divmod(place * bits, 8)
        code = eights[..., byte] >> shift
        if shift + bits > 8:
            code |= eights[..., byte + 1] << 8 - shift
        codes[..., place] = code & (1 << bits) - 1
    return codes.reshape(*packed.shape[:-1], -1)


def read_quantization(model: str, config: Mapping[str, Any]) -> Quantization | None:
    """Return how MLX packed the weights; None: it did not. Raises ConfigurationError for formats not served."""
    told = config.get("quantization")
    if told is None:
        return None
    try:
        modules = {name: _kind(value) for name, value in told.items() if isinstance(value, Mapping)}
        return Quantization(_kind(told), modules)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        expected = (
            f"expected mode affine, group_size of {_GROUP_SIZES} and bits of {_BITS}, or mode"
            f" {', '.join(_MICRO_GROUPS)} with its own group_size and bits, for all and for single modules"
        )
        raise ConfigurationError(f"model {model}: quantization: {expected}, got {told!r}") from error


def _kind(told: Mapping[str, Any]) -> Affine | Micro:
    mode = told.get("mode", "affine")
    if mode in _MICRO_GROUPS:
        micro = Micro(mode)
        if (told.get("group_size", micro.group_size), told.get("bits", micro.bits)) != (micro.group_size, micro.bits):
            raise ValueError
        return micro
    affine = Affine(int(told["group_size"]), int(told["bits"]))
    if mode != "affine" or affine.group_size not in _GROUP_SIZES or affine.bits not in _BITS:
        raise ValueError
    return affine
