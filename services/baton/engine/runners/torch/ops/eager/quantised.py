"""The projections of a layer rounded to 8 or 4 bits as they are loaded; activations keep their dtype.

What is rounded is held as weights are that a checkpoint packs, and multiplied by the same kernels. A model whose
weights are rounded is another model: `revision_of` gives its K and V another revision, so that no node takes them for
those of the checkpoint.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple

import torch
from torch.nn.functional import pad

from baton.errors import ConfigurationError

WeightDtype = Literal["auto", "int8", "int4", "fp8"]
"""In what the projections of all layers are held; auto: in the dtype of activations. The output projection keeps it."""

_WEIGHT_BITS: dict[str, int] = {"int8": 8, "int4": 4, "fp8": 8}
_GROUP_SIZES = (64, 32)
_FP8 = torch.float8_e4m3fn
_FP8_MAX, _FP8_SQUARE = 448.0, 128


def check_supported(weight_dtype: WeightDtype, device: torch.device) -> None:
    """Check that there is a kernel; raise ConfigurationError if there is none."""
    if weight_dtype == "fp8" and device.type != "cuda":
        raise ConfigurationError(f"weight_dtype fp8: there are kernels on CUDA only, not on {device.type}")


def revision_of(digest: str, weight_dtype: WeightDtype) -> str:
    """Return the revision of a model with its weights rounded: 32 hexadecimal digits."""
    if weight_dtype == "auto":
        return digest
    return blake2b(f"{digest}/{weight_dtype}".encode(), digest_size=16).hexdigest()


def weight_bits(weight_dtype: WeightDtype, dtype: torch.dtype) -> int:
    """Return the bits of an element of a projection, scales not counted."""
    return _WEIGHT_BITS.get(weight_dtype) or 8 * int(dtype.itemsize)


class RoundedWeight(NamedTuple):
    """A weight [num_outputs, num_inputs] in few bits."""

    codes: torch.Tensor
    """[num_outputs, num_inputs], uint8: whole numbers, or floats with 4 bits of exponent."""
    scales: torch.Tensor
    """[num_outputs, num_groups]: bfloat16 of whole numbers, float32 of floats."""
    biases: torch.Tensor | None
    """Likewise, bfloat16; None: codes are floats."""
    bits: int
    group_size: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what weights have in common that can lie in one array."""
        return (self.bits, self.group_size, self.biases is None)

    def packed(self) -> torch.Tensor:
        """Return the codes of a row as one stream of bits, the lowest first: [num_outputs, num_inputs * bits / 8]."""
        return self.codes if self.bits == 8 else self.codes[:, ::2] | self.codes[:, 1::2] << 4

    def numbers(self) -> torch.Tensor:
        """Return the weight in float32."""
        codes = self.codes.view(_FP8) if self.biases is None else self.codes
        scales, biases = (
            None if part is None else part.float().repeat_interleave(self.group_size, 1)[:, : codes.shape[1]]
            for part in (self.scales, self.biases)
        )
        return codes.float() * scales + (0.0 if biases is None else biases)


def rounded(weight: torch.Tensor, weight_dtype: WeightDtype) -> RoundedWeight:
    """Return a weight [num_outputs, num_inputs], rounded; raise ConfigurationError if its inputs fit no group."""
    if weight_dtype == "fp8":
        return _in_floats(weight)
    bits, num_inputs = _WEIGHT_BITS[weight_dtype], weight.shape[1]
    group_size = next((size for size in _GROUP_SIZES if num_inputs % size == 0), 0)
    if not group_size:
        raise ConfigurationError(f"weight_dtype {weight_dtype}: {num_inputs} inputs, no multiple of {_GROUP_SIZES[-1]}")
    groups = weight.float().unflatten(1, (-1, group_size))
    low, most = groups.amin(-1), (1 << bits) - 1
    scales = ((groups.amax(-1) - low) / most).clamp(min=1e-8).bfloat16()
    biases = low.bfloat16()
    levels = (groups - biases.float()[..., None]) / scales.float()[..., None]
    return RoundedWeight(levels.round().clamp(0, most).flatten(1).to(torch.uint8), scales, biases, bits, group_size)


def _in_floats(weight: torch.Tensor) -> RoundedWeight:
    """Return a weight with a scale for each square, as DeepSeek's checkpoints have them."""
    num_outputs, num_inputs = weight.shape
    wide = pad(weight.float(), (0, -num_inputs % _FP8_SQUARE, 0, -num_outputs % _FP8_SQUARE))
    squares = wide.unflatten(1, (-1, _FP8_SQUARE)).unflatten(0, (-1, _FP8_SQUARE))
    scales = (squares.abs().amax((1, 3), keepdim=True) / _FP8_MAX).clamp(min=1e-12)
    codes = (squares / scales).to(_FP8).view(torch.uint8).flatten(2).flatten(0, 1)[:num_outputs, :num_inputs]
    own = scales[:, 0, :, 0].repeat_interleave(_FP8_SQUARE, 0)[:num_outputs]
    return RoundedWeight(codes.contiguous(), own, None, 8, _FP8_SQUARE)
