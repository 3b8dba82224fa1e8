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

_BITS = (2, 3, 4, 5, 6, 8)
_GROUP_SIZES = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class Affine:
    """How the elements of a tensor are packed."""

    group_size: int
    """Elements that share a scale and a bias."""
    bits: int
    """Bits of an element."""

    def num_inputs(self, num_words: int) -> int:
        """Return the elements of a row of words of 32 bits."""
        return num_words * 32 // self.bits

    def unpack(self, words: Array, scales: Floats, biases: Floats) -> Floats:
        """Return what rows stand for: [num_rows, num_inputs].

        Args:
            words: [num_rows, num_inputs * bits / 32], uint32.
            scales: [num_rows, num_inputs / group_size].
            biases: Likewise.
        """
        groups = unpack_codes(np.ascontiguousarray(words).view(np.uint8), self.bits).astype(np.float32)
        groups = groups.reshape(*scales.shape, self.group_size)
        groups *= scales[..., None]
        groups += biases[..., None]
        return groups.reshape(len(words), -1)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a folder's weights are packed; single modules may differ."""

    default: Affine
    """Of modules that are not named."""
    modules: Mapping[str, Affine]
    """Modules of their own kind, by name."""

    def of(self, module: str) -> Affine:
        """Return how a module's weight is packed, given that it is."""
        return self.modules.get(module, self.default)

    def weight_bytes(self, num_parameters: int, scale_bytes: int) -> int:
        """Return what parameters take with their scales and biases, of `scale_bytes` each."""
        return math.ceil(num_parameters * (self.default.bits / 8 + 2 * scale_bytes / self.default.group_size))


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
    """Return how the weights are packed by MLX; None: they are not.

    Raises:
        ConfigurationError: If config.json says it in a way that MLX does not write, or names a format of MLX that is
            not served.
    """
    told = config.get("quantization")
    if told is None:
        return None
    try:
        modules = {name: _affine(value) for name, value in told.items() if isinstance(value, Mapping)}
        return Quantization(_affine(told), modules)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        expected = (
            f"expected mode affine, group_size of {_GROUP_SIZES} and bits of {_BITS}, for all and for single modules"
        )
        raise ConfigurationError(f"model {model}: quantization: {expected}, got {told!r}") from error


def _affine(told: Mapping[str, Any]) -> Affine:
    kind = Affine(int(told["group_size"]), int(told["bits"]))
    if told.get("mode", "affine") != "affine" or kind.group_size not in _GROUP_SIZES or kind.bits not in _BITS:
        raise ValueError
    return kind
