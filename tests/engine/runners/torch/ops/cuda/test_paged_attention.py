"""The attention kernel computes what float64 does, in every mask and page case, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
import torch

from baton.engine.runners.torch.ops.cuda.paged_queries import num_splits
from baton.engine.runners.torch.ops.eager.attention import attend_causally
from baton.engine.runners.torch.ops.eager.paged_attention import attend_from_blocks
from baton.engine.runners.torch.ops.pool import KeysValues
from engine.runners.torch.ops.cuda import kernel_cases
from engine.runners.torch.ops.cuda.elementwise_cases import between_errors, num_drawn_otherwise
from engine.runners.torch.ops.cuda.kernel_cases import CASES, inputs_of, served_cases
from engine.runners.torch.ops.cuda.packed_cases import packed_errors

_MAX_RELATIVE_ERROR = {torch.float32: 2e-6, torch.float16: 3e-3}
_MAX_GPU_ERROR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


@cache
def kernel_errors() -> dict[str, Any]:
    """Return the kernels' relative errors in every case; `BATON_KERNEL_SEED` draws other inputs."""
    seed = int(os.environ.get("BATON_KERNEL_SEED", "1"))
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", kernel_cases.__name__, str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    return {**json.loads(done.stdout), "seed": seed}


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_what_float64_does(name: str) -> None:
    """Interpreted, the kernel differs from exact arithmetic by rounding; NaN in blocks of others reaches nobody."""
    pytest.importorskip("triton", reason="triton is not installed: the extra cuda")
    errors = kernel_errors()

    assert errors["attention"][name] <= _MAX_RELATIVE_ERROR[CASES[name].dtype], f"seed {errors['seed']}"


def test_kernels_between_products_compute_what_float64_does() -> None:
    """Rotation and storing, gates, sums and norms; nothing is written beside the slots."""
    pytest.importorskip("triton", reason="triton is not installed: the extra cuda")
    errors = kernel_errors()["between"]

    assert len(errors) == 14
    for name, error in errors.items():
        assert error <= (2e-6 if ", float32," in name else 3e-3), name


def test_tokens_are_drawn_as_the_host_draws_them() -> None:
    """Tokens that may not come, rows that are not finite, temperature 0 and both ends of the unit interval."""
    pytest.importorskip("triton", reason="triton is not installed: the extra cuda")

    assert kernel_errors()["drawn"] == [0, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
@pytest.mark.parametrize("dtype", _MAX_GPU_ERROR)
def test_kernels_compute_what_float64_does_on_a_gpu(dtype: torch.dtype) -> None:
    """Compiled, in the sizes and number formats of models that are served."""
    seed = int(os.environ.get("BATON_KERNEL_SEED", "1"))
    chosen = {name: case for name, case in served_cases().items() if case.dtype == dtype}

    errors = kernel_cases.kernel_errors(chosen, seed, device="cuda")
    errors |= between_errors(seed, dtype, device="cuda", size=4096)
    errors |= packed_errors(seed, dtype, device="cuda", sizes=((1000, 1152),), all_rows=(1, 8, 9, 17))
    errors["drawn"] = num_drawn_otherwise(seed, dtype, device="cuda", size=151_936)

    assert {name: error for name, error in errors.items() if error > _MAX_GPU_ERROR[dtype]} == {}


def test_a_model_computes_the_same_with_all_kernels() -> None:
    """A packed pass of two prompts and a decode pass over static buffers, as CUDA runs them, give the same logits."""
    pytest.importorskip("triton", reason="triton is not installed: the extra cuda")
    for name in ("model", "model in 4 bits"):
        errors = kernel_errors()[name]

        assert errors.keys() == {"packed", "decode"}
        assert all(0 < error < 1e-4 for error in errors.values()), errors


def test_products_by_packed_weights_compute_what_float64_does() -> None:
    """Of a row, whole and split, and of many; numbers written out are those of their format, to the last bit."""
    pytest.importorskip("triton", reason="triton is not installed: the extra cuda")
    errors = kernel_errors()["products"]

    assert len(errors) == 32
    for name, error in errors.items():
        assert error <= (0 if name.endswith("weights") else 1e-3 if "float16" in name else 5e-6), name


@pytest.mark.parametrize("name", CASES)
def test_reference_attends_as_the_blocked_attention_does(name: str) -> None:
    """What the kernel is compared with is not a twin of its mistakes: the CPU's attention agrees, key by key."""
    query, pool, queries, params = inputs_of(CASES[name], 3).to(torch.float32)
    output = attend_from_blocks(query, pool, queries, params)
    first = 0
    for index, (start, end) in enumerate(CASES[name].intervals):
        keys, values = (tensor[:, queries.tables[index].long()].flatten(1, 2)[:, :end] for tensor in pool)
        rows = query[first : first + end - start].transpose(0, 1).unflatten(0, (keys.shape[0], -1))
        expected = attend_causally(rows.contiguous(), KeysValues(keys, values), params, first_query=start)

        torch.testing.assert_close(output[first : first + end - start].transpose(0, 1), expected.flatten(0, 1))
        first += end - start


@pytest.mark.parametrize(
    ("num_tiles", "max_end", "expected"),
    [(1, 131_072, 32), (1, 1024, 4), (1, 100, 1), (8, 131_072, 4), (32, 131_072, 1), (500, 131_072, 1)],
)
def test_keys_are_split_where_multiprocessors_would_idle(num_tiles: int, max_end: int, expected: int) -> None:
    """132 multiprocessors and 8 KV heads: few tiles over long contexts are split, many or short ones are not."""
    assert num_splits(num_tiles, 8, max_end, 132) == expected
