"""Weights that were saved in few bits in MLX's format, as mlx-community publishes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from baton.errors import ConfigurationError

_WEIGHT, _SCALES = ".weight", ".scales"
_PARTS = (_SCALES, ".biases")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a folder's weights are packed; single modules may differ."""

    group_size: int
    """Elements that share a scale and a bias."""
    bits: int
    """Bits of an element."""
    modules: Mapping[str, Mapping[str, Any]]
    """Modules of their own kind, by name."""

    def shapes(self, packed: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor as if it were not packed, without scales and biases."""
        return {
            name: (*shape[:-1], packed[scales][-1] * self._group_size_of(name)) if scales in packed else shape
            for name, shape in packed.items()
            if not name.endswith(_PARTS)
            for scales in [name.removesuffix(_WEIGHT) + _SCALES]
        }

    def weight_bytes(self, num_parameters: int, scale_bytes: int) -> int:
        """Return what parameters take with their scales and biases, of `scale_bytes` each."""
        return math.ceil(num_parameters * (self.bits / 8 + 2 * scale_bytes / self.group_size))

    def _group_size_of(self, name: str) -> int:
        return int(self.modules.get(name.removesuffix(_WEIGHT), {}).get("group_size", self.group_size))


def read_quantization(model: str, config: Mapping[str, Any]) -> Quantization | None:
    """Return how the weights are packed by MLX; None: they are not.

    Raises:
        ConfigurationError: If config.json says it in a way that MLX does not write.
    """
    told = config.get("quantization")
    if told is None:
        return None
    try:
        modules = {name: value for name, value in told.items() if isinstance(value, Mapping)}
        return Quantization(int(told["group_size"]), int(told["bits"]), modules)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"model {model}: quantization: expected group_size and bits, got {told!r}") from error
