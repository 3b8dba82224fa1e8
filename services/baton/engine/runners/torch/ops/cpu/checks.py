"""Which ways of computing serve on this CPU: right, found by trying them, and the fastest, found by timing them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from baton.engine.checkpoint.quantization import Affine
from baton.engine.runners.torch.ops.cpu.affine import blocks_of
from baton.engine.runners.torch.ops.cpu.linear import (
    Layout,
    PackedLinear,
    TransposedLinear,
    WidenedLinear,
    pack,
    panels_of,
    product,
    transposed,
)
from baton.engine.runners.torch.ops.cpu.numba_kernels import MAX_PANEL_ROWS
from baton.engine.runners.torch.ops.cpu.ops import CpuPaths, attend_in_blocks, attend_in_tiles
from baton.engine.runners.torch.ops.eager.attention import AttentionParams, attend_by_torch
from baton.engine.runners.torch.ops.eager.linear import PlainLinear
from baton.engine.runners.torch.ops.pool import Array, KeysValues, array_of

log = logging.getLogger(__name__)

_MAX_ONEDNN_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
_MAX_KERNEL_ERROR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Largest relative errors. Kernels are for these dtypes alone."""
_LONG_SECONDS = 1.0
"""A check that takes longer has compiled; numba's cache would have spared it."""
_MAX_STRIP_ROWS = 32
"""Rows up to which strips beat MKL: on an EPYC with AVX2 16 rows of SmolLM-135M's layers take 77 ms against 102, 32
rows 138 against 142."""
_MIN_GAIN = 1.03
"""How many times as long oneDNN must take for weights to be transposed: less may be noise."""
_PRODUCT_TRIAL_ROWS, _PRODUCT_TRIAL_SIZE, _TRIAL_ROUNDS = 512, 768, 5
_ATTENTION_TRIAL_QUERIES = 256


def cpu_paths(dtype: torch.dtype, num_threads: int) -> CpuPaths:
    """Return what computes in a dtype with as many threads as torch has, its kernels compiled and tried."""
    return CpuPaths(
        num_threads,
        layout_for(dtype, num_threads),
        is_sound(torch.float32),
        dtype is torch.bfloat16 and is_sound(dtype),
        can_attend(dtype),
        can_attend_prompts() and is_fastest_in_tiles(dtype, num_threads),
        can_multiply(dtype) or can_stream_transposed(dtype),
        partial(can_multiply_packed, dtype),
    )


def layout_for(dtype: torch.dtype, num_threads: int) -> Layout:
    """Return the layout of weights that is multiplied by soonest.

    Transposed weights are for one thread: more of them multiply prompts sooner by packed ones.
    """
    if not is_sound(torch.float32):
        return Layout(PlainLinear, "as loaded: oneDNN failed its check")
    is_candidate = dtype is torch.float32 or (dtype is torch.bfloat16 and not is_sound(dtype))
    if is_candidate and num_threads == 1 and is_transposed_faster() and can_stream_transposed(dtype):
        form = partial(TransposedLinear, max_streamed_rows=_MAX_STRIP_ROWS)
        return Layout(form, "transposed: torch multiplies prompts sooner than oneDNN")
    if is_sound(dtype):
        num_rows = MAX_PANEL_ROWS if can_multiply(dtype) else 0
        packed = partial(PackedLinear, max_streamed_rows=num_rows, num_threads=num_threads)
        return Layout(packed, "packed: oneDNN passed its check")
    return Layout(WidenedLinear, f"packed, in float32: this CPU multiplies {_name(dtype)} slowly")


@cache
def is_sound(dtype: torch.dtype) -> bool:
    """Return whether oneDNN's `product` is there and right in a dtype; the reason is logged where it is not."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 160, generator=generator).to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    inputs = [torch.randn(num_rows, 160, generator=generator).to(dtype) for num_rows in (1, 7, 130)]
    try:
        forms = (pack(weight), weight, weight.t().contiguous().t())
        errors = [
            _relative(product(rows, form, bias), linear(rows.double(), weight.double(), bias.double()))
            for rows in inputs
            for form in forms
        ]
    except (RuntimeError, AttributeError) as error:
        log.warning("onednn_off dtype=%s cause=%r", dtype, str(error))
        return False
    if not all(error <= _MAX_ONEDNN_ERROR[dtype] for error in errors):  # also where one is not a number
        log.warning("onednn_off dtype=%s relative_errors=%s", dtype, errors)
        return False
    return True


@cache
def can_attend(dtype: torch.dtype) -> bool:
    """Return whether attention of single queries is right in a dtype; the reason is logged where it is not."""
    return dtype in _MAX_KERNEL_ERROR and _is_kernel_sound("attention", _attention_error, dtype)


@cache
def can_attend_prompts() -> bool:
    """Return whether the attention of prompts is right; the reason is logged where it is not."""
    return _is_kernel_sound("prompt_attention", _prompt_attention_error, torch.float32)


@cache
def can_multiply(dtype: torch.dtype) -> bool:
    """Return whether products, and what goes between them, are right in a dtype: oneDNN's layout is its own affair."""
    return dtype in _MAX_KERNEL_ERROR and is_sound(dtype) and _is_kernel_sound("product", _product_error, dtype)


@cache
def can_stream_transposed(dtype: torch.dtype) -> bool:
    """Return whether products by transposed weights, and what goes between them, are right in a dtype."""
    return dtype in _MAX_KERNEL_ERROR and _is_kernel_sound("strips", _strips_error, dtype)


@cache
def is_transposed_faster() -> bool:
    """Return whether one thread multiplies prompts sooner by transposed weights than by packed ones."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_PRODUCT_TRIAL_ROWS, _PRODUCT_TRIAL_SIZE, generator=generator)
    weight = torch.randn(_PRODUCT_TRIAL_SIZE, _PRODUCT_TRIAL_SIZE, generator=generator)
    packed, turned = PackedLinear(weight, None), TransposedLinear(weight, None)
    found = gain(
        lambda: turned.product(rows), lambda: packed.product(rows), num_rounds=_TRIAL_ROUNDS, clock=time.thread_time
    )
    is_faster = found >= _MIN_GAIN
    log.info("weights_laid_out layout=%s gain=%.2f", "transposed" if is_faster else "packed", found)
    return is_faster


@cache
def can_multiply_packed(dtype: torch.dtype) -> bool:
    """Return whether products by packed weights are right in a dtype, and oneDNN's by those that are unpacked.

    On a CPU without products of bfloat16 they are unpacked to float32.
    """
    is_unpacked_right = is_sound(dtype) or is_sound(torch.float32)
    return dtype in _MAX_KERNEL_ERROR and is_unpacked_right and _is_kernel_sound("affine", _affine_error, dtype)


@cache
def is_fastest_in_tiles(dtype: torch.dtype, num_threads: int) -> bool:
    """Return whether prompts are attended from sooner in tiles than by what else there is on so many threads."""
    generator, num_queries = torch.Generator().manual_seed(0), _ATTENTION_TRIAL_QUERIES
    query = torch.randn(3, 3, num_queries, 64, generator=generator).to(dtype)
    kv = KeysValues(*(torch.randn(3, 2 * num_queries, 64, generator=generator).to(dtype) for _ in range(2)))
    question = (query, kv, AttentionParams(0.125))
    other = attend_by_torch
    if is_sound(torch.float32):
        other = partial(attend_in_blocks, multiplies_bfloat16=dtype is torch.bfloat16 and is_sound(dtype))
    found = gain(
        lambda: attend_in_tiles(*question, first_query=num_queries, num_threads=num_threads),
        lambda: other(*question, first_query=num_queries),
        num_rounds=_TRIAL_ROUNDS,
        clock=time.monotonic,
    )
    log.info("prompts_attended dtype=%s threads=%d gain_of_tiles=%.2f", _name(dtype), num_threads, found)
    return found > 1


def gain(
    own: Callable[[], object], other: Callable[[], object], *, num_rounds: int, clock: Callable[[], float]
) -> float:
    """Return how many times as long the other way takes: of the least seconds of each, which take turns.

    `clock` gives seconds of the CPU where one thread works, else of the wall.
    """

    def seconds(way: Callable[[], object]) -> float:
        started_seconds = clock()
        way()
        return clock() - started_seconds

    rounds = [(seconds(own), seconds(other)) for _ in range(num_rounds)]
    return min(other for _, other in rounds) / min(own for own, _ in rounds)


def _is_kernel_sound(name: str, measure: Any, dtype: torch.dtype) -> bool:
    started_seconds = time.monotonic()
    try:
        error = measure(dtype)
    except (ImportError, RuntimeError, AttributeError, ValueError, OSError) as cause:
        log.warning("compiled_off kernel=%s dtype=%s cause=%r", name, dtype, str(cause))
        return False
    if not error <= _MAX_KERNEL_ERROR[dtype]:  # also where it is not a number
        log.warning("compiled_off kernel=%s dtype=%s relative_error=%s", name, dtype, error)
        return False
    seconds = time.monotonic() - started_seconds
    if seconds > _LONG_SECONDS:
        log.info("kernel_compiled kernel=%s dtype=%s seconds=%.1f", name, dtype, seconds)
    return True


def _attention_error(dtype: torch.dtype) -> float:
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend, attention_address
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import MEMBER_ALONE

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 16, generator=generator).to(dtype)
    keys, values = (torch.randn(1, 3, 4, 16, generator=generator).to(dtype) for _ in range(2))
    output = torch.empty_like(query)
    attend(
        MEMBER_ALONE,
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
    from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend_prompt
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import ALONE

    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 60, 24, generator=generator, dtype=dtype)
    keys, values = (torch.randn(1, 70, size, generator=generator, dtype=dtype) for size in (24, 40))
    output = torch.empty(1, 2, 60, 40)
    arrays = [array_of(tensor) for tensor in (query, keys, values)]
    attend_prompt(ALONE, *arrays, 10, 0, np.float32(0.25), array_of(output))
    mask = torch.ones(60, 70, dtype=torch.bool).tril(10)
    seen_keys, seen_values = (tensor.double()[:, None].expand(-1, 2, -1, -1) for tensor in (keys, values))
    expected = scaled_dot_product_attention(query.double(), seen_keys, seen_values, attn_mask=mask, scale=0.25)
    return _relative(output, expected)


def _product_error(dtype: torch.dtype) -> float:
    def panels(weight: torch.Tensor) -> tuple[torch.Tensor, Array]:
        packed = pack(weight)
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


def _affine_error(dtype: torch.dtype) -> float:
    from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import multiply
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import ALONE

    random, kind = np.random.default_rng(0), Affine(32, 4)
    words = random.integers(0, 1 << 32, (48, 20), dtype=np.uint32)
    scales, biases = (array_of(torch.from_numpy(random.normal(size=(48, 5))).bfloat16()) for _ in range(2))
    blocks = blocks_of(words, scales, biases, bits=4, is_half=False)
    wide = [(each.astype(np.uint32) << 16).view(np.float32) for each in (scales, biases)]
    weight, errors = torch.from_numpy(kind.unpack(words, *wide)), []
    for num_rows in (1, 3):
        rows = torch.from_numpy(random.normal(size=(num_rows, 160))).to(dtype)
        output = rows.new_empty(num_rows, 48)
        multiply(ALONE, array_of(rows), blocks, array_of(rows.new_empty(0)), array_of(output))
        errors.append(_relative(output, linear(rows.double(), weight.double())))
    return max(errors) if all(error == error for error in errors) else float("nan")


def _largest_error(
    dtype: torch.dtype, lay_out: Callable[[torch.Tensor], tuple[torch.Tensor, Array]], counts_of_rows: Iterable[int]
) -> float:
    """Return the largest relative error of products of few rows; NaN if one is not a number."""
    from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import multiply
    from baton.engine.runners.torch.ops.cpu.numba_kernels.team import ALONE

    generator = torch.Generator().manual_seed(0)
    errors = []
    for num_outputs, num_inputs in ((96, 160), (64, 50)):
        weight = torch.randn(num_outputs, num_inputs, generator=generator).to(dtype)
        bias = torch.randn(num_outputs, generator=generator).to(dtype)
        _memory, array = lay_out(weight)
        for num_rows in counts_of_rows:
            rows = torch.randn(num_rows, num_inputs, generator=generator).to(dtype)
            output = rows.new_empty(num_rows, num_outputs)
            multiply(ALONE, array_of(rows), array, array_of(bias), array_of(output))
            errors.append(_relative(output, linear(rows.double(), weight.double(), bias.double())))
    return max(errors) if all(error == error for error in errors) else float("nan")


def _relative(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected).abs().max() / expected.abs().max())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
