"""Every kernel, compiled for the device, computes what float64 does: all masks, pages, groups, head sizes, splits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from baton.engine.runners.torch.ops.choose import IS_INTERPRETED
from baton.engine.runners.torch.ops.cuda import paged_attention
from baton.engine.runners.torch.ops.cuda.paged_queries import Tiles, tiles_for
from engine.runners.torch.ops.cuda import kernel_cases
from engine.runners.torch.ops.cuda.elementwise_cases import between_errors
from engine.runners.torch.ops.cuda.kernel_cases import CASES, Case, inputs_of, served_cases
from gpu.device import DEVICE, IS_CUDA, SEED

pytestmark = pytest.mark.skipif(not (IS_CUDA or IS_INTERPRETED), reason="on a CPU under TRITON_INTERPRET=1 alone")
MAX_ERROR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""As a share of the largest exact value."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (1, 2, 3, 5, 8, 16, 31, 64, 130, 256) if IS_CUDA else (1, 3)
GROUPS = {"llama": (4, 128, 0, 0.0, False), "gpt_oss": (8, 64, 128, 0.0, True), "gemma2": (2, 256, 0, 50.0, False)}
"""Query heads of a KV head, head size, window, soft cap, sinks."""


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill what kernels are to write with NaN beforehand: an element that is left out is seen."""

    def poisoning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        return made

    for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, poisoning(getattr(owner, name)))


def check(cases: dict[str, Case], seed: int = SEED) -> None:
    """Compare each case with float64."""
    errors = kernel_cases.kernel_errors(cases, seed, device=str(DEVICE))

    assert {name: error for name, error in errors.items() if not error <= MAX_ERROR[cases[name].dtype]} == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dtype is torch.float32])
def test_every_mask_and_page(name: str, dtype: torch.dtype) -> None:
    """In every number format that is served, with tiles chosen by hand and as they are chosen in service."""
    if dtype is torch.bfloat16 and not IS_CUDA:
        pytest.skip("numpy, which interprets, knows no bfloat16")
    case = CASES[name]._replace(dtype=dtype)
    longest = max(end - start for start, end in case.intervals)
    served = tiles_for(dtype, group=case.group, head_dim=case.head_dim, max_queries=longest)

    check({"by hand": case, "served": case._replace(tiles=served)} if IS_CUDA else {"by hand": case})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["mixed", "decode", "decode of one"])
def test_sizes_of_served_models(kind: str, dtype: torch.dtype) -> None:
    """Long contexts, in tiles and splits as services choose them."""
    if not IS_CUDA:
        pytest.skip("too many numbers to be interpreted")
    check({name: case for name, case in served_cases().items() if name.startswith(f"{kind}, {str(dtype)[6:]}")})


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_decode_batches(name: str, dtype: torch.dtype) -> None:
    """From one sequence to 256, of any lengths, as a captured step launches them: for the longest context there is."""
    if dtype is torch.bfloat16 and not IS_CUDA:
        pytest.skip("numpy, which interprets, knows no bfloat16")
    group, head_dim, window, cap, has_sinks = GROUPS[name]
    draw = random.Random(SEED)
    tiles = tiles_for(dtype, group=group, head_dim=head_dim, max_queries=1)
    for size in BATCHES:
        ends = [draw.choice((1, draw.randint(1, 40), draw.randint(1, 600))) for _ in range(size)]
        intervals = tuple((end - 1, end) for end in ends)
        case = Case(intervals, tiles, group, 2, head_dim, head_dim, 16, window, cap, has_sinks, dtype)
        for max_end in (max(ends), 4096):
            inputs = inputs_of(case, draw.randrange(1 << 30), device=str(DEVICE))
            exact = kernel_cases.exact(inputs)
            queries = inputs.queries
            object.__setattr__(queries, "max_end", max_end)
            output = paged_attention.attend_by_kernel(*inputs)

            error = float((output.double() - exact).abs().max() / exact.abs().max())
            assert error <= MAX_ERROR[dtype], f"{size} sequences, max_end {max_end}"


@pytest.mark.parametrize("num_splits", [1, 2, 8, 32] if IS_CUDA else [1, 4])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_any_number_of_splits(num_splits: int, has_sinks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More splits than there are keys, and rows of which some splits see nothing."""
    monkeypatch.setattr(paged_attention, "num_splits", lambda *_: num_splits)
    decode = Case(((0, 1), (63, 64), (520, 521)), Tiles(1, 16, 32, 4, 2), num_kv_heads=1, has_sinks=has_sinks)
    prompts = Case(((0, 9), (30, 31), (20, 37)), Tiles(16, 32, 32, 4, 2), has_sinks=has_sinks, window_tokens=11)

    check({"decode": decode, "prompts": prompts})


@pytest.mark.parametrize("size", (64, 80, 1024, 4096, 8192) if IS_CUDA else (80,))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_lies_between_products(size: int, dtype: torch.dtype) -> None:
    """Rotation and storing, gates, sums and norms."""
    if dtype is torch.bfloat16 and not IS_CUDA:
        pytest.skip("numpy, which interprets, knows no bfloat16")
    errors = between_errors(SEED + size, dtype, device=str(DEVICE), size=size)

    assert {name: error for name, error in errors.items() if not error <= MAX_ERROR[dtype]} == {}
