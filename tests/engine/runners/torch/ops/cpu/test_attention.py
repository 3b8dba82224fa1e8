"""Attention in blocks and in tiles of queries equals the textbook's, whatever the window and the cached prefix are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.runners.torch.batch import PackedBatch
from baton.engine.runners.torch.ops.cpu import ops
from baton.engine.runners.torch.ops.cpu.checks import is_sound
from baton.engine.runners.torch.ops.cpu.linear import Layout
from baton.engine.runners.torch.ops.cpu.ops import CpuPaths, attend_in_blocks
from baton.engine.runners.torch.ops.eager.attention import AttentionParams, attend_by_torch, attend_causally
from baton.engine.runners.torch.ops.eager.linear import PlainLinear
from baton.engine.runners.torch.ops.pool import KeysValues, KvPool

BATCH = PackedBatch(
    [],
    KvPool([], num_blocks=0, block_tokens=16, dtype=torch.float32, device=torch.device("cpu")),
    torch.device("cpu"),
)


def attend_in_tiles(query: torch.Tensor, kv: KeysValues, params: AttentionParams, *, first_query: int) -> torch.Tensor:
    """Attend with one thread."""
    return ops.attend_in_tiles(query, kv, params, first_query=first_query, num_threads=1)


def textbook(query: torch.Tensor, kv: KeysValues, first_query: int, params: AttentionParams) -> torch.Tensor:
    """Attend in float64 with one mask."""
    window = params.window_tokens
    scores = query.double() @ kv.keys.double()[:, None].transpose(-1, -2) * params.scaling
    if params.soft_cap:
        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    queries = torch.arange(first_query, first_query + query.shape[2])[:, None]
    keys = torch.arange(kv.keys.shape[1])[None]
    is_seen = (keys <= queries) & ((keys > queries - window) if window else True)
    exponentials = scores.masked_fill(~is_seen, -torch.inf).exp()
    sums = exponentials.sum(-1, keepdim=True)
    if params.sinks is not None:
        sums = sums + params.sinks.double().exp().view(*query.shape[:2], 1, 1)
    return exponentials / sums @ kv.values.double()[:, None]


@settings(max_examples=60, deadline=None)
@given(
    num_queries=st.integers(1, 300),
    first_query=st.integers(0, 700),
    window=st.sampled_from([0, 1, 7, 64, 300, 5000]),
    num_kv_heads=st.integers(1, 2),
    num_groups=st.integers(1, 4),
    soft_cap=st.sampled_from([0.0, 0.0, 5.0]),
    has_sinks=st.booleans(),
)
def test_equals_the_textbook(
    num_queries: int,
    first_query: int,
    window: int,
    num_kv_heads: int,
    num_groups: int,
    soft_cap: float,
    has_sinks: bool,
) -> None:
    """In float32, to rounding."""
    generator = torch.Generator().manual_seed(num_queries * 1009 + first_query)
    query = torch.randn(num_kv_heads, num_groups, num_queries, 16, generator=generator)
    keys = torch.randn(num_kv_heads, first_query + num_queries, 16, generator=generator)
    kv = KeysValues(keys, torch.randn(*keys.shape[:2], 24, generator=generator))

    sinks = torch.randn(num_kv_heads * num_groups, generator=generator) if has_sinks else None
    params = AttentionParams(0.7, window, soft_cap, sinks)

    output = attend_causally(query, kv, params, first_query=first_query)

    expected = textbook(query, kv, first_query, params)
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=1e-4)
    if is_sound(torch.float32):
        by_onednn = attend_in_blocks(query, kv, params, first_query=first_query)
        torch.testing.assert_close(by_onednn.double(), expected, atol=2e-5, rtol=1e-4)
    if params.is_plain:
        tiled = attend_in_tiles(query, kv, params, first_query=first_query)
        torch.testing.assert_close(tiled.double(), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("attend", [attend_causally, attend_in_blocks, attend_in_tiles])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_torch(dtype: torch.dtype, attend: Callable[..., torch.Tensor]) -> None:
    """In 16 bits the error against float64 is no larger than that of torch's own kernel, up to a quarter."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(2, 1, 400, 64, generator=generator).to(dtype) for _ in range(3))
    kv = KeysValues(keys[:, 0], values[:, 0])
    expected = textbook(query, kv, 0, AttentionParams(0.125))

    output = attend(query, kv, AttentionParams(0.125), first_query=0)

    torchs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    error, torch_error = (float((result.double() - expected).pow(2).mean().sqrt()) for result in (output, torchs))
    assert error <= 1.25 * torch_error


@pytest.mark.parametrize("is_key", [True, False])
def test_what_is_not_a_number_shows_in_those_who_see_it(is_key: bool) -> None:
    """The check of the logits must see it; other heads are as they were."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(2, 1, 600, 16, generator=generator) for _ in range(3))
    kv = KeysValues(keys[:, 0], values[:, 0])
    expected = attend_in_tiles(query, kv, AttentionParams(0.25), first_query=0)
    kv[0 if is_key else 1][1, 555, 3] = float("nan")

    output = attend_in_tiles(query, kv, AttentionParams(0.25), first_query=0)

    assert output[1, 0, 555:].isnan().any(-1).all()
    torch.testing.assert_close(output[0], expected[0], rtol=0, atol=0)


def test_tiles_serve_prompts_of_plain_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries and bent scores are left to others."""
    monkeypatch.setattr(ops, "attend_in_tiles", lambda *_, **__: "tiles")
    monkeypatch.setattr(ops, "attend_in_blocks", lambda *_, **__: "blocks")
    layout = Layout(PlainLinear, "as loaded")
    paths = CpuPaths(
        1,
        layout,
        multiplies_by_onednn=True,
        multiplies_bfloat16=False,
        answers_single_queries=False,
        attends_in_tiles=True,
        computes_layers=False,
    )
    own, kv = ops.CpuOps(torch.device("cpu"), paths), KeysValues(torch.zeros(1, 16, 4), torch.zeros(1, 16, 4))

    def way(num_queries: int, params: AttentionParams) -> object:
        first_query = 16 - num_queries
        return own.attend_positions(BATCH, torch.zeros(1, 1, num_queries, 4), kv, params, first_query=first_query)

    assert way(16, AttentionParams(1.0)) == "tiles"
    assert way(16, AttentionParams(1.0, soft_cap=5.0)) == "blocks"
    assert way(1, AttentionParams(1.0, soft_cap=5.0)) == "blocks"
    assert isinstance(way(15, AttentionParams(1.0)), torch.Tensor)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_share_the_heads_of_a_prompt(num_threads: int) -> None:
    """Each head is attended from once, whoever does it, and as one thread does."""
    query, keys, values = torch.randn(2, 3, 90, 16), torch.randn(2, 100, 16), torch.randn(2, 100, 24)
    kv, params = KeysValues(keys, values), AttentionParams(0.25, window_tokens=33)
    expected = attend_in_tiles(query, kv, params, first_query=10)

    output = ops.attend_in_tiles(query, kv, params, first_query=10, num_threads=num_threads)

    torch.testing.assert_close(output, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 7])
def test_each_way_of_the_trial_does_the_same(dtype: torch.dtype, window: int) -> None:
    """What is timed against each other are answers to one question."""
    query, keys, values = (torch.randn(size).to(dtype) for size in ((2, 3, 40, 16), (2, 60, 16), (2, 60, 16)))
    question = (query, KeysValues(keys, values), AttentionParams(0.25, window))

    tiled, by_torch = (way(*question, first_query=20) for way in (attend_in_tiles, attend_by_torch))

    torch.testing.assert_close(tiled, by_torch, atol=1e-5 if dtype is torch.float32 else 0.03, rtol=0.02)
