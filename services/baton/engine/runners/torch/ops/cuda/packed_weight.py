"""Weights in few bits as the kernels take them, made of what files hold, on the device; no number is formed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from baton.engine.checkpoint.quantization import Affine, Micro
from baton.engine.checkpoint.tensor_files import StoredTensor
from baton.engine.checkpoint.weights import PackedRows
from baton.engine.runners.torch.ops.eager.quantised import RoundedWeight

_WIDTHS = (32, 16, 8)
"""Words of an output in a block; the first is multiplied by sooner."""
_HELD_BITS = {2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 8: 8}
"""Bits that codes are held in: each lies within a word."""
_GROUP_SIZES = (16, 32, 64, 128)
_PART_ELEMENTS = 1 << 24
"""Codes that are laid out at a time."""


class Format(NamedTuple):
    """What codes and scales say."""

    bits: int
    """Of a code."""
    group_size: int
    """Neighbouring inputs that share a scale: 16, 32, 64 or 128."""
    codes: Literal["affine", "e4m3", "e2m1"]
    """A whole number, multiplied by a scale and added to a bias; or a float, multiplied by a scale."""
    scales: Literal["bf16", "f16", "f32", "e8m0", "e4m3"]
    """What a word of scales holds: a scale below and a bias above; a scale; the scales of four groups."""

    @property
    def groups_per_word(self) -> int:
        """Return the groups whose scales are in one word."""
        return 4 if self.scales in ("e8m0", "e4m3") else 1


class PackedWeight(NamedTuple):
    """A weight [num_outputs, num_inputs], its inputs in blocks and filled up with zeros.

    The code of input ((block * pairs + pair) * num_words + word) * 2 + half lies in word `word` of block `block`, at
    bits * pair of its lower or upper half: what shifts and masks make of a block's words are neighbouring inputs.
    """

    words: torch.Tensor
    """[num_blocks, num_outputs, num_words], int32."""
    scales: torch.Tensor
    """[groups / groups_per_word, num_outputs], int32."""
    num_inputs: int
    kind: Format
    """As it is held, in 2, 4 or 8 bits."""

    @property
    def num_outputs(self) -> int:
        """Return the outputs."""
        return int(self.words.shape[1])


def can_hold(packed: PackedRows) -> bool:
    """Return whether a weight can stay as it is packed: blocks of inputs and groups must divide each other."""
    if packed.kind.group_size not in _GROUP_SIZES:
        return False
    scales, biases = packed.scales.dtype, packed.biases and packed.biases.dtype
    return not isinstance(packed.kind, Affine) or (scales in ("BF16", "F16") and biases in (None, scales))


def packed_weight(packed: PackedRows, device: torch.device) -> PackedWeight:
    """Return a weight of a file that `can_hold` has accepted."""
    kind, stored = packed.kind, _uploaded(packed.words, device).view(torch.uint8)
    scales = _uploaded(packed.scales, device)
    if isinstance(kind, Affine):  # without biases codes are above and below their middle
        biases = _uploaded(packed.biases, device) if packed.biases else scales * -(1 << kind.bits - 1)
        is_half = scales.dtype is torch.float16
        form = Format(kind.bits, kind.group_size, "affine", "f16" if is_half else "bf16")
        return lay_out(stored, pair(scales, biases), form)
    if isinstance(kind, Micro):
        codes: Literal["e4m3", "e2m1"] = "e4m3" if kind.bits == 8 else "e2m1"
        form = Format(kind.bits, kind.group_size, codes, "e4m3" if kind.mode == "nvfp4" else "e8m0")
        return lay_out(stored, scales, form)
    squares = scales.float().expand(-(-stored.shape[0] // kind.group_size), -(-stored.shape[1] // kind.group_size))
    told = squares.repeat_interleave(kind.group_size, 0)[: len(stored)].view(torch.int32)
    return lay_out(stored, told, Format(kind.bits, kind.group_size, "e4m3", "f32"))


def rounded_weight(weight: RoundedWeight) -> PackedWeight:
    """Return a weight that was rounded as it was loaded."""
    if weight.biases is None:
        form = Format(weight.bits, weight.group_size, "e4m3", "f32")
        return lay_out(weight.packed(), weight.scales.view(torch.int32), form)
    form = Format(weight.bits, weight.group_size, "affine", "bf16")
    return lay_out(weight.packed(), pair(weight.scales, weight.biases), form)


def pair(scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Return scales and biases of 16 bits, [num_outputs, num_groups], as words of both."""
    low, high = (part.view(torch.int16).to(torch.int32) for part in (scales, biases))
    return low & 0xFFFF | high << 16


def lay_out(stored: torch.Tensor, told: torch.Tensor, form: Format) -> PackedWeight:
    """Return a weight as the kernels take it.

    Args:
        stored: [num_outputs, num_inputs * bits / 8], uint8; a row's codes are one stream of bits, the lowest first.
        told: Scales, [num_outputs, num_groups]: int32, or uint8 where four are in a word.
        form: As it is stored; codes of 3 bits are held in 4, of 5 and 6 in 8.
    """
    num_outputs, num_inputs, held = stored.shape[0], stored.shape[1] * 8 // form.bits, _HELD_BITS[form.bits]
    pairs = 16 // held
    fitting = (width for width in _WIDTHS if 2 * width <= form.group_size)
    num_words = min(fitting, key=lambda width: -num_inputs % (2 * pairs * width))
    block_inputs = 2 * pairs * num_words
    num_blocks = -(-num_inputs // block_inputs)
    words = stored.new_zeros((num_blocks, num_outputs, num_words), dtype=torch.int32)
    step = max(1, _PART_ELEMENTS // num_inputs)
    for first in range(0, num_outputs, step):
        part = pad(_codes(stored[first : first + step], form.bits), (0, num_blocks * block_inputs - num_inputs))
        codes = part.view(len(part), num_blocks, pairs, num_words, 2).to(torch.int32)
        for pair_index in range(pairs):
            for half in range(2):
                own = codes[:, :, pair_index, :, half].transpose(0, 1)
                words[:, first : first + step] |= own << held * pair_index + 16 * half
    num_groups = max(told.shape[1], num_blocks * block_inputs // form.group_size)
    num_groups += -num_groups % form.groups_per_word
    scales = pad(told, (0, num_groups - told.shape[1])).view(torch.int32).t().contiguous()
    return PackedWeight(words, scales, num_inputs, form._replace(bits=held))


def joined(weights: Sequence[PackedWeight]) -> PackedWeight:
    """Return weights of the same inputs and kind as one, outputs in order."""
    if len(weights) == 1:
        return weights[0]
    words, scales = (torch.cat(parts, dim=1) for parts in list(zip(*weights, strict=True))[:2])
    return weights[0]._replace(words=words, scales=scales)


def _uploaded(stored: StoredTensor, device: torch.device) -> torch.Tensor:
    """Return a matrix of a file."""
    tensor = torch.from_numpy(np.array(stored.matrix())).to(device)
    return tensor.view(torch.bfloat16) if stored.dtype == "BF16" else tensor


def _codes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Return what `quantization.unpack_codes` does, on the device."""
    if bits == 8:
        return packed
    eights = packed.view(len(packed), -1, bits).to(torch.int32)
    codes = [
        eights[..., byte] >> shift | (eights[..., byte + 1] << 8 - shift if shift + bits > 8 else 0)
        for byte, shift in (divmod(place * bits, 8) for place in range(8))
    ]
    return (torch.stack(codes, -1) & (1 << bits) - 1).to(torch.uint8).view(len(packed), -1)
