"""The projections of a layer with weights in 8 or 4 bits, by torch's own kernels; activations keep their dtype.

A model whose weights are rounded is another model: `revision_of` gives its K and V another revision, so that no node
takes them for those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Literal

import torch

from baton.engine.runners.torch.ops.eager.linear import Projection
from baton.errors import ConfigurationError

WeightDtype = Literal["auto", "int8", "int4", "fp8"]
"""In what the projections of all layers are held; auto: in the dtype of activations. The output projection keeps it."""

_WEIGHT_BITS: dict[str, int] = {"int8": 8, "int4": 4, "fp8": 8}
_GROUP_SIZES = (128, 64, 32)
_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0


def check_supported(weight_dtype: WeightDtype, dtype: str, device: torch.device) -> None:
    """Check that torch has a kernel for device and dtype of activations; raise ConfigurationError if it has none."""
    if weight_dtype == "fp8" and device.type != "cuda":
        raise ConfigurationError(f"weight_dtype fp8: torch multiplies it on CUDA only, not on {device.type}")
    if weight_dtype in ("int4", "fp8") and device.type == "cuda" and dtype != "bfloat16":
        raise ConfigurationError(f"weight_dtype {weight_dtype}: on CUDA it needs dtype bfloat16, not {dtype}")


def revision_of(digest: str, weight_dtype: WeightDtype) -> str:
    """Return the revision of a model with its weights rounded: 32 hexadecimal digits."""
    if weight_dtype == "auto":
        return digest
    return blake2b(f"{digest}/{weight_dtype}".encode(), digest_size=16).hexdigest()


def weight_bits(weight_dtype: WeightDtype, dtype: torch.dtype) -> int:
    """Return the bits of an element of a projection, scales not counted."""
    return _WEIGHT_BITS.get(weight_dtype) or 8 * int(dtype.itemsize)


def quantised(
    weight: torch.Tensor, bias: torch.Tensor | None, weight_dtype: WeightDtype, int4_form: type[Int4Product]
) -> Projection:
    """Return a product of a weight [num_outputs, num_inputs], rounded; raise ConfigurationError if no kernel fits."""
    forms: dict[str, Callable[[torch.Tensor], Projection]] = {"int8": Int8Product, "int4": int4_form, "fp8": Fp8Product}
    product = forms[weight_dtype](weight)
    return product if bias is None else lambda rows: product(rows) + bias


class Int8Product:
    """A weight [num_outputs, num_inputs] in 8 bits, with a scale for each output."""

    def __init__(self, weight: torch.Tensor) -> None:
        wide = weight.float()
        scales = (wide.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        self._weight = (wide / scales[:, None]).round().to(torch.int8)
        self._scales = scales.to(weight.dtype)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        result: torch.Tensor = torch._weight_int8pack_mm(rows.contiguous(), self._weight, self._scales)
        return result


class Int4Product:
    """A weight [num_outputs, num_inputs] in 4 bits, with a scale and a middle for each group of inputs of an output."""

    def __init__(self, weight: torch.Tensor) -> None:
        num_outputs, num_inputs = weight.shape
        self._group_size = next((size for size in _GROUP_SIZES if num_inputs % size == 0), 0)
        if not self._group_size or num_outputs % 16:
            sizes = f"{num_inputs} inputs and {num_outputs} outputs"
            raise ConfigurationError(f"weight_dtype int4: {sizes} are no multiples of {_GROUP_SIZES[-1]} and 16")
        groups = weight.float().unflatten(1, (-1, self._group_size))
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low) / 15).clamp(min=1e-8)
        levels = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15).flatten(1).to(torch.int32)
        middles = low + 8 * scales
        self._scales_and_middles = torch.stack([scales, middles], dim=-1).transpose(0, 1).contiguous().to(weight.dtype)
        self._weight = self._pack(levels)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return self._multiply(rows.contiguous(), self._weight, self._group_size, self._scales_and_middles)

    def _pack(self, levels: torch.Tensor) -> torch.Tensor:
        """Return levels [num_outputs, num_inputs], from 0 to 15, as `_multiply` takes them."""
        packed: torch.Tensor = torch._convert_weight_to_int4pack_for_cpu(levels, 1)
        return packed

    def _multiply(
        self, rows: torch.Tensor, packed: torch.Tensor, group_size: int, scales_and_middles: torch.Tensor
    ) -> torch.Tensor:
        result: torch.Tensor = torch._weight_int4pack_mm_for_cpu(rows, packed, group_size, scales_and_middles)
        return result


class CudaInt4Product(Int4Product):
    """The same on CUDA."""

    def _pack(self, levels: torch.Tensor) -> torch.Tensor:
        num_tiles = next(count for count in (8, 4, 2) if levels.shape[1] % (16 * count) == 0)
        pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
        packed: torch.Tensor = torch._convert_weight_to_int4pack(pairs, num_tiles)
        return packed

    def _multiply(
        self, rows: torch.Tensor, packed: torch.Tensor, group_size: int, scales_and_middles: torch.Tensor
    ) -> torch.Tensor:
        result: torch.Tensor = torch._weight_int4pack_mm(rows, packed, group_size, scales_and_middles)
        return result


class Fp8Product:
    """A weight [num_outputs, num_inputs] in 8-bit floats, with a scale for each output; rows are rounded likewise."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._dtype = weight.dtype
        self._weight, scales = _to_fp8(weight)
        self._scales = scales.view(1, -1)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        narrow, scales = _to_fp8(rows)
        result: torch.Tensor = torch._scaled_mm(
            narrow, self._weight.t(), scale_a=scales, scale_b=self._scales, out_dtype=self._dtype
        )
        return result


def _to_fp8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows in 8-bit floats, and what each is to be multiplied by: [num_rows, 1], float32."""
    scales = (rows.abs().amax(dim=1, keepdim=True).float() / _FP8_MAX).clamp(min=1e-12)
    return (rows.float() / scales).to(_FP8), scales
