"""Where the kernels serve, found by trying them, and tensors as they take them."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from baton.engine.runners.torch.ops.cpu import onednn
from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS, STRIP_INPUTS, STRIP_OUTPUTS

log = logging.getLogger(__name__)

_MAX_RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
_LONG_SECONDS = 1.0
"""A check that takes longer has compiled; numba's cache would have spared it."""
Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""A tensor's memory, as kernels take it."""


def array_of(tensor: torch.Tensor) -> Array:
    """Return the numpy array of the same memory; bfloat16 as the bits, uint16."""
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


def panels_of(packed: torch.Tensor, weight: torch.Tensor) -> Array | None:
    """Return a packed weight as panels, which live no longer than it does; None if it does not consist of such.

    oneDNN chooses its layout by the sizes of a weight, the processor and the number of threads.

    Args:
        packed: What `onednn.pack` returned.
        weight: Of this one, [num_outputs, num_inputs].
    """
    num_outputs, num_inputs = weight.shape
    num_panels, num_words = -(-num_outputs // PANEL_OUTPUTS), torch.ops.mkldnn._nbytes(packed) // 4
    num_steps, num_left = divmod(num_words, num_panels * PANEL_OUTPUTS)  # some of them past the last input, of zeros
    if num_left or num_steps * 4 < num_inputs * weight.itemsize:
        return None
    kind = ctypes.c_uint32 if weight.dtype is torch.bfloat16 else ctypes.c_float
    words = (kind * num_words).from_address(torch.ops.mkldnn.data_ptr(packed))
    panels = np.ctypeslib.as_array(words).reshape(num_panels, num_steps, PANEL_OUTPUTS)
    return panels if _are_panels_of(panels, weight) else None


def _are_panels_of(panels: Array, weight: torch.Tensor) -> bool:
    """Return whether panels hold a weight: those of some of its inputs, and the last, are looked at."""
    num_outputs, num_inputs = weight.shape
    halves = 4 // weight.itemsize
    expected = array_of(weight.detach())
    held = panels.view(np.uint16 if halves == 2 else np.float32).reshape(*panels.shape[:2], PANEL_OUTPUTS, halves)
    for place in {0, num_inputs // 2, num_inputs - 1}:
        own = held[:, place // halves, :, place % halves].reshape(-1)[:num_outputs]
        if not np.array_equal(own, expected[:, place]):
            return False
    return True


def is_one_thread() -> bool:
    """Return whether torch computes on one thread: kernels that know no other beat it then."""
    num_threads: int = torch.get_num_threads()
    return num_threads == 1


def transposed(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [num_outputs, num_inputs] as strips take it: transposed, padded by zeros to whole strips.

    Returns:
        [num_inputs, num_outputs], contiguous, inputs rounded up to 8 and outputs to 32.
    """
    num_outputs, num_inputs = weight.shape
    turned = weight.new_zeros(
        -(-num_inputs // STRIP_INPUTS) * STRIP_INPUTS, -(-num_outputs // STRIP_OUTPUTS) * STRIP_OUTPUTS
    )
    turned[:num_inputs, :num_outputs] = weight.t()
    return turned


@cache
def can_attend(dtype: torch.dtype) -> bool:
    """Return whether attention is right in a dtype; the reason is logged where it is not."""
    return dtype in _MAX_RELATIVE_ERROR and _is_sound("attention", _attention_error, dtype)


@cache
def can_attend_prompts() -> bool:
    """Return whether the attention of prompts is right; the reason is logged where it is not."""
    return _is_sound("prompt_attention", _prompt_attention_error, torch.float32)


@cache
def can_multiply(dtype: torch.dtype) -> bool:
    """Return whether products, and what goes between them, are right in a dtype: oneDNN's layout is its own affair."""
    return dtype in _MAX_RELATIVE_ERROR and onednn.is_sound(dtype) and _is_sound("product", _product_error, dtype)


@cache
def can_stream_transposed(dtype: torch.dtype) -> bool:
    """Return whether products by transposed weights, and what goes between them, are right in a dtype."""
    return dtype in _MAX_RELATIVE_ERROR and _is_sound("strips", _strips_error, dtype)


def _is_sound(name: str, measure: Any, dtype: torch.dtype) -> bool:
    started_seconds = time.monotonic()
    try:
        error = measure(dtype)
    except (ImportError, RuntimeError, AttributeError, ValueError, OSError) as cause:
        log.warning("compiled_off kernel=%s dtype=%s cause=%r", name, dtype, str(cause))
        return False
    if not error <= _MAX_RELATIVE_ERROR[dtype]:  # also where it is not a number
        log.warning("compiled_off kernel=%s dtype=%s relative_error=%s", name, dtype, error)
        return False
    seconds = time.monotonic() - started_seconds
    if seconds > _LONG_SECONDS:
        log.info("kernel_compiled kernel=%s dtype=%s seconds=%.1f", name, dtype, seconds)
    return True


def _attention_error(dtype: torch.dtype) -> float:
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend, attention_address

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 16, generator=generator).to(dtype)
    keys, values = (torch.randn(1, 3, 4, 16, generator=generator).to(dtype) for _ in range(2))
    output = torch.empty_like(query)
    attend(
        attention_address(2, 16, 16, is_bfloat16=dtype is torch.bfloat16),
        *(array_of(tensor) for tensor in (query, keys, values)),
        (np.array([0]), np.array([[2, 0, 1]]), np.array([[1, 11]])),
        np.float32(0.25),
        array_of(output),
    )
    seen_keys, seen_values = (tensor[0, [2, 0, 1]].flatten(0, 1)[1:11].double()[None] for tensor in (keys, values))
    expected = scaled_dot_product_attention(query.double(), seen_keys, seen_values, scale=0.25)
    return _relative(output, expected)


def _prompt_attention_error(dtype: torch.dtype) -> float:
    from baton.engine.runners.torch.ops.cpu.numba_kernels.prompt_attention import attend_prompt

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 60, 24, generator=generator, dtype=dtype)
    keys, values = (torch.randn(1, 70, size, generator=generator, dtype=dtype) for size in (24, 40))
    output = torch.empty(1, 2, 60, 40)
    attend_prompt(*(array_of(tensor) for tensor in (query, keys, values)), 10, 0, np.float32(0.25), array_of(output))
    mask = torch.ones(60, 70, dtype=torch.bool).tril(10)
    seen_keys, seen_values = (tensor.double()[:, None].expand(-1, 2, -1, -1) for tensor in (keys, values))
    expected = scaled_dot_product_attention(query.double(), seen_keys, seen_values, attn_mask=mask, scale=0.25)
    return _relative(output, expected)


def _product_error(dtype: torch.dtype) -> float:
    from baton.engine.runners.torch.ops.cpu.numba_kernels.product import MAX_PANEL_ROWS

    def panels(weight: torch.Tensor) -> tuple[torch.Tensor, Array]:
        packed = onednn.pack(weight)
        array = panels_of(packed, weight)
        if array is None:
            raise ValueError("oneDNN's layout is not one of panels")
        return packed, array

    return _largest_error(dtype, panels, range(1, MAX_PANEL_ROWS + 1))


def _strips_error(dtype: torch.dtype) -> float:
    def strips(weight: torch.Tensor) -> tuple[torch.Tensor, Array]:
        turned = transposed(weight)
        return turned, array_of(turned)

    return _largest_error(dtype, strips, range(1, 9))


def _largest_error(
    dtype: torch.dtype, lay_out: Callable[[torch.Tensor], tuple[torch.Tensor, Array]], counts_of_rows: Iterable[int]
) -> float:
    """Return the largest relative error of products of few rows; NaN if one is not a number."""
    from baton.engine.runners.torch.ops.cpu.numba_kernels.product import multiply

    generator = torch.Generator().manual_seed(0)
    errors = []
    for num_outputs, num_inputs in ((96, 160), (64, 50)):
        weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
        bias = torch.randn(num_outputs, generator=generator).to(dtype)
        _memory, array = lay_out(weight)
        for num_rows in counts_of_rows:
            rows = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
            output = rows.new_empty(num_rows, num_outputs)
            multiply(array_of(rows), array, array_of(bias), array_of(output))
            errors.append(_relative(output, linear(rows.double(), weight.double(), bias.double())))
    return max(errors) if all(error == error for error in errors) else float("nan")


def _relative(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).abs().max() / expected.abs().max())
