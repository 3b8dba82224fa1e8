"""Every mask and page case of paged attention, on fresh random inputs, against float64.

Run as a program under TRITON_INTERPRET=1 it prints the errors of the interpreted kernel as JSON: Triton decides when a
kernel is defined whether it is interpreted, hence the process of its own.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from transformers import Qwen3Config

from baton.engine.runners.base import Span
from baton.engine.runners.torch.ops import choose
from baton.engine.runners.torch.ops.cuda.paged_attention import attend_by_kernel
from baton.engine.runners.torch.ops.cuda.paged_queries import (
    PagedQueries,
    Tiles,
    pack_queries,
    padded_tables,
    tiles_for,
)
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype
from baton.engine.runners.torch.ops.pool import KeysValues
from bench.microbench.torch.shapes import Shape, random_runner
from engine.runners.torch.ops.cuda.elementwise_cases import between_errors, num_drawn_otherwise
from engine.runners.torch.ops.cuda.packed_cases import KINDS, packed_errors

TINY_WITH_NORMS = Shape("tiny-qwen3", Qwen3Config, 2, 64, 96, 4, 2, 16, 512, is_tied=True)


class Case(NamedTuple):
    """Sequences, heads and masks; what is not named is as simple as it can be."""

    intervals: tuple[tuple[int, int], ...]
    """Positions of the queries of each sequence."""
    tiles: Tiles
    """Into what the queries are cut."""
    group: int = 2
    """Query heads of a KV head."""
    num_kv_heads: int = 2
    """KV heads."""
    head_dim: int = 16
    """Elements of a query or key."""
    value_dim: int = 16
    """Elements of a value."""
    block_tokens: int = 4
    """Tokens of a block."""
    window_tokens: int = 0
    """Positions that a query sees; 0: all."""
    soft_cap: float = 0.0
    """Bound of the scores; 0: none."""
    has_sinks: bool = False
    """Whether every head has a sink."""
    dtype: torch.dtype = torch.float32
    """Of queries and cache."""


DECODE = Tiles(1, 16, 32, 4, 2)
PREFILL = Tiles(16, 32, 32, 4, 2)
_ONE = ((0, 1), (63, 64))
_MIXED = ((0, 9), (30, 31), (20, 37))

CASES = {
    "prompts": Case(((0, 17), (0, 8), (0, 1)), PREFILL),
    "prompt behind a cached prefix": Case(((23, 40), (16, 20)), PREFILL),
    "chunks, prompts and decode together": Case(_MIXED, PREFILL),
    "decode, one split": Case(_ONE, DECODE),
    "decode, keys split": Case(((520, 521), (0, 1)), DECODE, num_kv_heads=1, block_tokens=16),
    "decode, keys split, sinks": Case(((520, 521),), DECODE, num_kv_heads=1, block_tokens=16, has_sinks=True),
    "decode, keys split, window": Case(((520, 521),), DECODE, num_kv_heads=1, block_tokens=16, window_tokens=40),
    "window, prefill": Case(_MIXED, PREFILL, window_tokens=11),
    "window, decode": Case(_ONE, DECODE, window_tokens=7),
    "window of one": Case(_MIXED, PREFILL, window_tokens=1),
    "no groups": Case(_MIXED, Tiles(32, 32, 32, 4, 2), group=1, num_kv_heads=3),
    "group that fills no power of two": Case(_MIXED, Tiles(10, 32, 32, 4, 2), group=3),
    "one KV head of eight": Case(_MIXED, Tiles(4, 32, 16, 4, 2), group=8, num_kv_heads=1),
    "soft cap": Case(_MIXED, PREFILL, soft_cap=3.0),
    "soft cap, window, small heads": Case(
        _MIXED, PREFILL, soft_cap=50.0, window_tokens=11, head_dim=16, value_dim=16, block_tokens=16
    ),
    "soft cap, window, decode, keys split": Case(
        ((520, 521),), DECODE, num_kv_heads=1, soft_cap=3.0, window_tokens=40, block_tokens=16
    ),
    "sinks": Case(_MIXED, PREFILL, has_sinks=True),
    "sinks, window, decode": Case(_ONE, DECODE, has_sinks=True, window_tokens=7),
    "head size that is no power of two": Case(_MIXED, PREFILL, head_dim=24, value_dim=24),
    "values narrower than keys": Case(_MIXED, PREFILL, head_dim=32, value_dim=20),
    "blocks of three tokens": Case(_MIXED, PREFILL, block_tokens=3),
    "blocks larger than a tile": Case(_MIXED, PREFILL, block_tokens=64),
    "float16": Case(_MIXED, PREFILL, dtype=torch.float16),
    "float16, decode": Case(_ONE, DECODE, dtype=torch.float16),
}


class Inputs(NamedTuple):
    """Arguments of `attend_paged`."""

    query: torch.Tensor
    pool: KeysValues
    queries: PagedQueries
    params: AttentionParams

    def to(self, dtype: torch.dtype) -> Inputs:
        """Return the same in another number format."""
        sinks = None if self.params.sinks is None else self.params.sinks.to(dtype)
        pool = KeysValues(self.pool.keys.to(dtype), self.pool.values.to(dtype))
        return Inputs(self.query.to(dtype), pool, self.queries, replace(self.params, sinks=sinks))


def inputs_of(case: Case, seed: int, *, device: str = "cpu") -> Inputs:
    """Return random inputs; blocks are scattered, and positions that nobody may read hold NaN."""
    torch.manual_seed(seed)
    draw, target = random.Random(seed), torch.device(device)
    num_needed = [-(-end // case.block_tokens) for _, end in case.intervals]
    num_blocks = sum(num_needed) + 3
    free = draw.sample(range(num_blocks), num_blocks)
    tables = [[free.pop() for _ in range(count)] for count in num_needed]
    shape = (case.num_kv_heads, num_blocks, case.block_tokens)
    keys, values = (torch.randn(*shape, dim).to(case.dtype) for dim in (case.head_dim, case.value_dim))
    for (_, end), table in zip(case.intervals, tables, strict=True):
        keys[:, table[-1], (end - 1) % case.block_tokens + 1 :] = torch.nan
    for block in free:
        keys[:, block] = values[:, block] = torch.nan
    starts, ends = zip(*case.intervals, strict=True)
    queries = pack_queries(padded_tables(tables, target), starts, ends, tiles=case.tiles, device=target)
    num_heads = case.group * case.num_kv_heads
    query = torch.randn(sum(ends) - sum(starts), num_heads, case.head_dim).to(case.dtype).to(target)
    sinks = torch.randn(num_heads).to(case.dtype).to(target) if case.has_sinks else None
    params = AttentionParams(case.head_dim**-0.5, case.window_tokens, case.soft_cap, sinks)
    return Inputs(query, KeysValues(keys.to(target), values.to(target)), queries, params)


def served_cases() -> dict[str, Case]:
    """Return cases in the sizes and number formats of models that are served: too many numbers to be interpreted."""
    cases = {}
    long = ((0, 700), (513, 514), (1000, 1511), (4000, 4001), (30, 2077))
    decode = tuple((end - 1, end) for end in (1, 17, 1024, 5000, 64, 333, 4096, 2))
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for group, head_dim, window, cap, sinks in (
            (4, 128, 0, 0.0, False),
            (2, 128, 300, 0.0, False),
            (8, 64, 128, 0.0, True),
            (2, 256, 0, 50.0, False),
            (1, 96, 0, 0.0, False),
        ):
            for name, intervals in (("mixed", long), ("decode", decode), ("decode of one", decode[4:5])):
                max_queries = 700 if name == "mixed" else 1
                tiles = tiles_for(dtype, group=group, head_dim=head_dim, max_queries=max_queries)
                case = Case(intervals, tiles, group, 4, head_dim, head_dim, 16, window, cap, sinks, dtype)
                cases[f"{name}, {str(dtype)[6:]}, {group} x {head_dim}, window {window}"] = case
    return cases


def exact(inputs: Inputs) -> torch.Tensor:
    """Return what attention is by its definition, sequence by sequence, in float64."""
    query, pool, queries, params = inputs
    outputs = []
    first_rows, ends = queries.first_rows.tolist(), queries.ends.tolist()
    for index, end in enumerate(ends):
        table = queries.tables[index].long()
        keys, values = (tensor[:, table].flatten(1, 2)[:, :end].double() for tensor in pool)
        rows = query[first_rows[index] : first_rows[index + 1]].double().transpose(0, 1)
        scores = rows.unflatten(0, (len(keys), -1)) @ keys[:, None].transpose(-1, -2) * params.scaling
        if params.soft_cap:
            scores = (scores / params.soft_cap).tanh() * params.soft_cap
        key = torch.arange(end, device=query.device)
        distance = key[-rows.shape[1] :, None] - key
        is_seen = (distance >= 0) & (distance < (params.window_tokens or end))
        weights = scores.masked_fill(~is_seen, -torch.inf).exp()
        total = weights.sum(-1, keepdim=True)
        if params.sinks is not None:
            total = total + params.sinks.double().view(len(keys), -1, 1, 1).exp()
        outputs.append((weights / total @ values[:, None]).flatten(0, 1).transpose(0, 1))
    return torch.cat(outputs)


def kernel_errors(cases: Mapping[str, Case], seed: int, *, device: str = "cpu") -> dict[str, float]:
    """Return the kernel's largest error in each case, as a share of the largest exact value; NaN is an error of 1."""
    errors = {}
    for name, case in cases.items():
        inputs = inputs_of(case, seed, device=device)
        expected = exact(inputs)
        error = float((attend_by_kernel(*inputs).double() - expected).abs().max() / expected.abs().max())
        errors[name] = error if math.isfinite(error) else 1.0
    return errors


def model_errors(seed: int, weight_dtype: WeightDtype = "auto") -> dict[str, float]:
    """Return by how much logits of a small model differ where Triton's kernels compute: in a packed and a decode pass.

    `weight_dtype`: in what weights are held. Of use where kernels are interpreted: the same tensors are then computed
    without them too.
    """
    draw = random.Random(seed)
    prompts = [draw.choices(range(10, 512), k=size) for size in (5, 3)]
    logits: dict[bool, list[torch.Tensor]] = {}
    for is_interpreted in (False, True):
        choose.IS_INTERPRETED = is_interpreted
        runner = random_runner(
            TINY_WITH_NORMS,
            dtype=torch.float32,
            device=torch.device("cpu"),
            num_blocks=8,
            max_batch_size=2,
            max_context=64,
            weight_dtype=weight_dtype,
        )
        spans = [Span(prompt, 0, [5 - row, row], needs_logits=True) for row, prompt in enumerate(prompts)]
        steps = [Span([7], len(prompt), [5 - row, row], needs_logits=True) for row, prompt in enumerate(prompts)]
        passes = [runner.launch(each).logits().rows() for each in (spans, steps)]
        logits[is_interpreted] = [torch.tensor(rows) for rows in passes]
    pairs = zip(("packed", "decode"), logits[True], logits[False], strict=True)
    return {name: float((actual - plain).abs().max() / plain.abs().max()) for name, actual, plain in pairs}


if __name__ == "__main__":
    drawn = int(sys.argv[1])
    between = [between_errors(drawn, dtype) for dtype in (torch.float32, torch.float16)]
    answer = {
        "attention": kernel_errors(CASES, drawn),
        "between": between[0] | between[1],
        "drawn": [num_drawn_otherwise(drawn, dtype) for dtype in (torch.float32, torch.float16)],
        "model": model_errors(drawn),
        "model in 4 bits": model_errors(drawn, "int4"),
        "products": packed_errors(drawn, torch.float32, kinds=KINDS[::3])
        | packed_errors(drawn, torch.float16, kinds=KINDS[1::5]),
    }
    print(json.dumps(answer))
