"""The kernels that numba compiles for decode steps, beside float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from baton.engine.runners.torch.ops.cpu.checks import can_attend, can_multiply, is_sound
from baton.engine.runners.torch.ops.cpu.linear import pack, panels_of, transposed
from baton.engine.runners.torch.ops.cpu.numba_kernels import compiling
from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import digest_of
from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import gate, multiply, normalise
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import ALONE, team_of
from baton.engine.runners.torch.ops.cpu.ops import attend_single, pack_single_queries
from baton.engine.runners.torch.ops.pool import array_of

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
HEADS = {torch.float32: (3, 24, 16), torch.bfloat16: (2, 16, 16)}
"""Queries of a KV head and elements of keys and values; each shape is a compilation, and the checks' own is there."""
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@both_dtypes
def test_the_checks_at_start_pass(dtype: torch.dtype) -> None:
    """This machine runs the kernels, unless oneDNN itself is off, or lays weights out otherwise."""
    weight = torch.randn(96, 160).to(dtype)
    has_panels = is_sound(dtype) and panels_of(pack(weight), weight) is not None

    assert can_attend(dtype)
    assert can_multiply(dtype) == has_panels


@both_dtypes
def test_single_queries_see_their_own_blocks_alone(dtype: torch.dtype) -> None:
    """Sequences of different lengths, scattered blocks and windows that begin within a block."""
    group, key_size, value_size = HEADS[dtype]
    sizes = ((4, 2 * group, key_size), (2, 9, 4, key_size), (2, 9, 4, value_size))
    query, keys, values = (torch.randn(size).to(dtype) for size in sizes)
    tables, spans, rows = [(3, 1, 8), (5,), (0, 7)], [(2, 11), (0, 1), (3, 8)], [3, 0, 2]
    output = torch.full((4, 2 * group, value_size), 7.0, dtype=dtype)

    attend_single(query, (array_of(keys), array_of(values)), pack_single_queries(rows, tables, spans), 0.2, output)

    for row, table, (first, end) in zip(rows, tables, spans, strict=True):
        seen = [
            tensor[:, list(table)].flatten(1, 2)[:, first:end].double().repeat_interleave(group, 0)
            for tensor in (keys, values)
        ]
        expected = scaled_dot_product_attention(query[row].double()[:, None], *seen, scale=0.2)[:, 0]
        torch.testing.assert_close(output[row].double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert (output[1] == 7.0).all(), "a row that is not asked for was written"


@both_dtypes
def test_a_key_that_is_not_a_number_shows_in_the_result(dtype: torch.dtype) -> None:
    """The check of the logits must see it."""
    query, keys = torch.randn(1, 2, 16).to(dtype), torch.randn(1, 1, 4, 16).to(dtype)
    values = torch.randn_like(keys)
    keys[0, 0, 2, 5] = float("nan")
    output = torch.zeros_like(query)

    attend_single(query, (array_of(keys), array_of(values)), pack_single_queries([0], [(0,)], [(0, 4)]), 0.25, output)

    assert output.isnan().all()


@both_dtypes
@pytest.mark.parametrize("num_rows", [1, 2, 3, 8])
def test_products_of_few_rows_equal_float64(dtype: torch.dtype, num_rows: int) -> None:
    """Inputs and outputs that fill no panel, with a bias."""
    if not is_sound(dtype):
        pytest.skip("oneDNN is off here")
    rows, weight, bias = torch.randn(num_rows, 70).to(dtype), torch.randn(130, 70).to(dtype), torch.randn(130).to(dtype)
    output, packed = torch.empty(num_rows, 130, dtype=dtype), pack(weight)
    panels = panels_of(packed, weight)
    if panels is None:
        pytest.skip("oneDNN's layout is not one of panels here")

    multiply(ALONE, array_of(rows), panels, array_of(bias), array_of(output))

    expected = linear(rows.double(), weight.double(), bias.double())
    scale = float(expected.abs().max())
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 8])
@both_dtypes
def test_narrow_panels_are_read_two_at_a_time(dtype: torch.dtype, num_rows: int) -> None:
    """An odd number of them, wherever the tests run: oneDNN has narrow ones where the CPU multiplies by AMX alone."""
    halves = 4 // dtype.itemsize
    rows, weight = torch.randn(num_rows, 70).to(dtype), torch.randn(96, 70).to(dtype)
    narrow = weight.view(3, 32, 70 // halves, halves).transpose(1, 2).contiguous()  # [panel, step, output, half]
    words = array_of(narrow.view(3, -1, 32 * halves)).view(np.float32 if halves == 1 else np.uint32)
    output = torch.empty(num_rows, 96, dtype=dtype)

    multiply(ALONE, array_of(rows), words, array_of(rows.new_empty(0)), array_of(output))

    expected = linear(rows.double(), weight.double())
    scale = float(expected.abs().max())
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def test_a_layout_that_is_not_one_of_panels_is_told_apart() -> None:
    """OneDNN chooses it; another weight's panels, or another size, would give wrong products."""
    if not is_sound(torch.float32):
        pytest.skip("oneDNN is off here")
    weight, other = torch.randn(128, 64), torch.randn(128, 64)

    assert panels_of(pack(other), weight) is None
    assert panels_of(pack(weight[:64]), weight) is None


@both_dtypes
@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("num_outputs", [130, 3000])
def test_products_by_transposed_weights_equal_float64(dtype: torch.dtype, num_rows: int, num_outputs: int) -> None:
    """Inputs and outputs that fill no strip, more outputs than one block of sums of 32 rows has, with a bias."""
    rows, weight = torch.randn(num_rows, 70).to(dtype), torch.randn(num_outputs, 70).to(dtype)
    bias = torch.randn(num_outputs).to(dtype)
    output, strips = torch.empty(num_rows, num_outputs, dtype=dtype), transposed(weight)

    multiply(ALONE, array_of(rows), array_of(strips), array_of(bias), array_of(output))

    expected = linear(rows.double(), weight.double(), bias.double())
    scale = float(expected.abs().max())
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=TOLERANCE[dtype] * scale)


@both_dtypes
@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_a_team_multiplies_to_the_last_bit_of_one_thread(dtype: torch.dtype, num_rows: int) -> None:
    """By strips and by panels, which are fewer than threads."""
    rows, weight = torch.randn(num_rows, 70).to(dtype), torch.randn(330, 70).to(dtype)
    strips, packed = transposed(weight), pack(weight) if is_sound(dtype) else None
    panels = None if packed is None else panels_of(packed, weight)
    for held in (array_of(strips), panels):
        if held is not None:
            results = [torch.zeros(num_rows, 330, dtype=dtype) for _ in range(3)]
            for num_threads, output in zip((1, 2, 7), results, strict=True):
                multiply(team_of(num_threads), array_of(rows), held, array_of(rows.new_empty(0)), array_of(output))

            assert torch.equal(results[0], results[1])
            assert torch.equal(results[0], results[2])


@both_dtypes
def test_norm_and_gate_equal_float64(dtype: torch.dtype) -> None:
    """What a layer does between its products; gates far from zero neither overflow nor vanish wrongly."""
    rows, weight = torch.randn(3, 48).to(dtype) * 40, torch.randn(48).to(dtype)
    normalised, gated = torch.empty_like(rows), torch.empty(3, 24, dtype=dtype)

    normalise(array_of(rows), array_of(weight), 1e-5, array_of(normalised))
    gate(array_of(rows), array_of(gated))

    wide = rows.double()
    limits = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(normalised.double(), rms_norm(wide, (48,), weight.double(), 1e-5), **limits)
    torch.testing.assert_close(gated.double(), silu(wide[:, :24]) * wide[:, 24:], **limits)


def test_tables_of_different_lengths_are_padded() -> None:
    """The kernel indexes a rectangle."""
    single = pack_single_queries([2, 5], [(4, 3), (1,)], [(0, 20), (1, 9)])

    assert single.tables.tolist() == [[4, 3], [1, 0]]
    assert np.array_equal(single.spans, [[0, 20], [1, 9]])


def test_a_change_in_any_source_leaves_machine_code_behind(tmp_path: Path) -> None:
    """Numba looks at a kernel's own file alone; a kernel holds code of others."""
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "b.py").write_text("b")
    before = digest_of(tmp_path)

    (tmp_path / "b.py").write_text("c")

    assert digest_of(tmp_path) != before
    assert digest_of(Path(compiling.__file__).parent) in normalise.stats.cache_path
