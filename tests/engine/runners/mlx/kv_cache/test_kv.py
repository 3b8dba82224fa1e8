"""K and V on their way in and out of the mlx runner, and the memory that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from baton.engine.runners.base import LayerKv, Span
from baton.kv.kv_format import LayerSpec
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint, reference_generate

mx = pytest.importorskip("mlx.core")

from baton.engine.runners.mlx import MlxRunner, load_mlx_runner  # noqa: E402 (needs mlx)
from baton.engine.runners.mlx.kv_cache.pool import LayerPool  # noqa: E402

NUM_BLOCKS = 160
NUM_NEW_TOKENS = 32
KV_TOLERANCE = 5e-5
"""Of the largest element; peaked attention amplifies rounding: transformers itself is 1.7e-5 off its own float64."""


@cache
def runner_of(name: CheckpointName) -> MlxRunner:
    """Return a float32 runner; blocks are whoever's test runs."""
    return load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=NUM_BLOCKS)


@pytest.fixture(params=CHECKPOINT_NAMES)
def name(request: pytest.FixtureRequest) -> CheckpointName:
    """Return each checkpoint's name."""
    chosen: CheckpointName = request.param
    return chosen


def prompt_of(num_tokens: int, seed: int = 0) -> list[int]:
    """Return a random prompt."""
    random = Random(1000 * seed + num_tokens)
    return [random.randrange(3, 512) for _ in range(num_tokens)]


def table_of(num_tokens: int) -> list[int]:
    """Return scattered blocks for a prompt and its continuation."""
    return Random(num_tokens).sample(range(NUM_BLOCKS), -(-(num_tokens + NUM_NEW_TOKENS) // 16))


def continue_greedily(runner: MlxRunner, prompt: list[int], table: list[int]) -> list[int]:
    """Return the continuation of a prompt of which all but the last token have their KV in the blocks."""
    token_ids = list(prompt)
    for end in range(len(prompt), len(prompt) + NUM_NEW_TOKENS):
        token_ids += runner.forward([Span(token_ids[-1:], end - 1, table, needs_logits=True)]).argmax()
    return token_ids[len(prompt) :]


@cache
def reference_model(folder: Path) -> Any:
    """Return the model by transformers."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def reference_kv(folder: Path, token_ids: list[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return K and V of every layer, [num_kv_heads, num_tokens, head_dim], by transformers."""
    kept = DynamicCache()
    reference_model(folder)(torch.tensor([token_ids]), past_key_values=kept, use_cache=True)
    return [(layer.keys[0].numpy(), layer.values[0].numpy()) for layer in kept.layers]


def as_arrays(runner: MlxRunner, layer: int, kv: LayerKv) -> tuple[np.ndarray, np.ndarray]:
    """Return float32 K and V as arrays."""
    spec = runner.info.layout.layers[layer]
    keys = np.frombuffer(kv.keys, np.float32).reshape(spec.num_kv_heads, -1, spec.key_head_dim)
    return keys, np.frombuffer(kv.values, np.float32).reshape(spec.num_kv_heads, -1, spec.value_head_dim)


def test_sink_takes_what_the_pool_and_transformers_hold(name: CheckpointName) -> None:
    """The sink is called per chunk and layer, in order, with what the pool and the reference's cache hold."""
    prompt, runner = prompt_of(150), runner_of(name)
    table = table_of(150)
    taken: list[tuple[int, LayerKv]] = []
    ends = [0, 70, 71, 150]
    for start, end in pairwise(ends):
        sink = partial(_append, taken)
        runner.forward([Span(prompt[start:end], start, table, needs_logits=False, layer_sink=sink)])

    num_layers = runner.info.layout.num_layers
    assert [layer for layer, _ in taken] == list(range(num_layers)) * 3
    for layer, expected in enumerate(reference_kv(checkpoint(name), prompt)):
        held = runner.read_kv(table, layer, 0, 150)
        chunks = [as_arrays(runner, layer, kv) for _, kv in taken[layer::num_layers]]
        for part in (0, 1):
            joined = np.concatenate([chunk[part] for chunk in chunks], axis=1)
            np.testing.assert_array_equal(joined, as_arrays(runner, layer, held)[part])
            assert np.abs(joined - expected[part]).max() <= KV_TOLERANCE * np.abs(expected[part]).max()
    spans = [runner.read_kv(table, 0, start, end - start) for start, end in pairwise(ends)]
    assert [bytes(kv.keys) for kv in spans] == [bytes(kv.keys) for _, kv in taken[::num_layers]]


def test_sink_is_called_before_later_layers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V of a layer are handed over before the next layer is even asked for."""
    runner, order = runner_of("llama"), list[str]()
    layers = runner._backbone._surroundings.modules

    def noted(index: int) -> Any:
        module = layers[index]
        return lambda *arguments, **named: (order.append(f"layer {index}"), module(*arguments, **named))[1]

    monkeypatch.setattr(runner._backbone._surroundings, "modules", [noted(index) for index in range(len(layers))])

    span = Span(
        prompt_of(20), 0, [0, 1], needs_logits=False, layer_sink=lambda layer, kv: order.append(f"sink {layer}")
    )
    runner.forward([span])

    assert order == [f"{kind} {layer}" for layer in range(4) for kind in ("layer", "sink")]


def test_kv_of_transformers_continues_identically(name: CheckpointName) -> None:
    """K and V of transformers, written in uneven pieces in any order, are continued with the reference's tokens."""
    prompt, runner = prompt_of(101), runner_of(name)
    table = table_of(101)
    for layer, (keys, values) in enumerate(reference_kv(checkpoint(name), prompt[:100])):
        for start, end in ((37, 100), (0, 16), (16, 37)):
            pieces = (np.ascontiguousarray(part[:, start:end]) for part in (keys, values))
            runner.write_kv(table, layer, start, end - start, LayerKv(*(piece.tobytes() for piece in pieces)))

    generated = continue_greedily(runner, prompt, table)

    assert generated == reference_generate(checkpoint(name), prompt, NUM_NEW_TOKENS, guess=generated)


@pytest.mark.parametrize("is_on_gpu", [False, True])
@pytest.mark.parametrize("is_quantized", [False, True])
def test_kv_lands_in_its_slots_and_nowhere_else(
    is_on_gpu: bool, is_quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots in no order, without a copy of the pool, by what is quicker on a CPU and by what a GPU gets."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: is_on_gpu)
    pool = LayerPool(LayerSpec(2, 64, 32), 512, 16, mx.float32, is_quantized=is_quantized)
    slots = np.asarray(Random(3).sample(range(512 * 16), 40), dtype=np.int32)
    keys, values = (np.ones((2, 40, dim), np.float32) * np.arange(1, 41, dtype=np.float32)[:, None] for dim in (64, 32))
    before = mx.get_active_memory()
    mx.reset_peak_memory()

    pool.write_bytes(slots, LayerKv(keys.tobytes(), values.tobytes()))
    mx.eval(pool.arrays)

    assert mx.get_peak_memory() - before < sum(array.nbytes for array in pool.arrays) / 4
    everything = pool.read_bytes(slice(0, 512 * 16))
    for part, data in zip((keys, values), everything, strict=True):
        expected = np.zeros((2, 512 * 16, part.shape[-1]), np.float32)
        expected[:, slots] = part
        np.testing.assert_allclose(np.frombuffer(data, np.float32).reshape(expected.shape), expected, rtol=1e-5)


def test_no_step_copies_the_pool() -> None:
    """Steps and arriving KV need little memory beside the pool.

    MLX says that a pass is over a moment before it lets go of what the pass read; on a busy machine the next write may
    fall into that moment, and copies. What every round copied would be a fault.
    """
    runner = load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=20_000)
    layer_bytes = sum(array.nbytes for array in runner._pools[0].arrays)
    kv = LayerKv(*[bytes(runner.info.layout.layers[0].num_token_elements // 2 * 4 * 16)] * 2)
    growths = list[int]()

    for start in range(4):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        runner.write_kv([7, 3], 0, start, 16, kv)
        runner.forward([Span([5] * 16, start, [9, 2], needs_logits=True, layer_sink=lambda layer, kv: None)])
        runner.forward([Span([5], start, [block], needs_logits=True) for block in (0, 4, 8)])
        runner.forward([Span([5] * 9, 0, [11, 10], needs_logits=True), Span([5] * 9, 0, [12, 13], needs_logits=False)])
        growths.append(mx.get_peak_memory() - before)

    assert min(growths) < layer_bytes / 4
    runner.close()


def test_kv_that_comes_piece_by_piece_does_not_copy_the_pool() -> None:
    """Nor does a pass behind them, however much MLX has still to do when they come."""
    runner = load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=20_000)
    layer_bytes = sum(array.nbytes for array in runner._pools[0].arrays)
    kv = LayerKv(*[bytes(runner.info.layout.layers[0].num_token_elements // 2 * 4 * 16)] * 2)
    slow = mx.ones((1200, 1200))
    mx.eval(slow)
    growths = list[int]()

    for start in range(4):
        mx.async_eval(slow @ slow)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        for block in range(4):
            runner.write_kv([block], 0, 0, 16, kv)
        runner.launch([Span([5], start, [9], needs_logits=True)])
        growths.append(mx.get_peak_memory() - before)

    assert min(growths) < layer_bytes / 4
    runner.close()


def test_last_layer_computes_one_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last layer's MLP runs for the last position, or not at all where no logits are wanted."""
    runner, position_bytes = runner_of("llama"), 4_000_000
    last = runner._backbone._surroundings.modules[-1]

    def hungry(hidden: Any) -> Any:
        return hidden + mx.random.uniform(shape=(hidden.shape[1], position_bytes // 4)).sum()

    monkeypatch.setitem(last, "mlp", hungry)
    peaks = []
    for needs_logits in (True, False):
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        runner.forward([Span(prompt_of(20), 0, [0, 1], needs_logits=needs_logits)])
        peaks.append((mx.get_peak_memory() - before) / position_bytes)

    assert 1 <= peaks[0] < 4
    assert peaks[1] < 1


@pytest.mark.parametrize("name", ["llama3", "mistral"])
def test_runner_built_in_one_thread_runs_in_another(name: CheckpointName) -> None:
    """MLX's streams belong to threads; the runner does not."""
    prompt, runner = prompt_of(30, seed=1), load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=NUM_BLOCKS)
    generated: list[int] = []

    def run() -> None:
        taken: list[tuple[int, LayerKv]] = []
        source, table = table_of(29), table_of(30)
        runner.forward([Span(prompt[:29], 0, source, needs_logits=False, layer_sink=partial(_append, taken))])
        for layer, kv in taken:
            runner.write_kv(table, layer, 0, 29, kv)
        generated.extend(continue_greedily(runner, prompt, table))

    thread = Thread(target=run)
    thread.start()
    thread.join(timeout=60)

    assert generated == reference_generate(checkpoint(name), prompt, NUM_NEW_TOKENS, guess=generated)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_kv_survives_a_round_trip(dtype: str) -> None:
    """What the sink took can be written elsewhere and read again, bit for bit, and the dtype does not widen."""
    runner = load_mlx_runner(checkpoint("qwen3"), model_id="tiny", dtype=dtype, num_blocks=8)
    taken: list[tuple[int, LayerKv]] = []
    runner.forward([Span(prompt_of(20), 0, [5, 1], needs_logits=False, layer_sink=partial(_append, taken))])
    spec = runner.info.layout.layers[0]

    _, kv = taken[3]
    runner.write_kv([2, 7], 3, 0, 20, kv)
    logits = runner.forward([Span([5], 20, [5, 1], needs_logits=True), Span([6], 0, [3], needs_logits=True)])

    assert len(kv.keys) == spec.num_kv_heads * 20 * spec.key_head_dim * 2
    assert [bytes(part) for part in runner.read_kv([2, 7], 3, 0, 20)] == [bytes(part) for part in kv]
    assert all(array.dtype == getattr(mx, dtype) for pool in runner._pools.values() for array in pool.arrays)
    assert np.isfinite(logits.rows()).all()


def _append(taken: list[tuple[int, LayerKv]], layer: int, kv: LayerKv) -> None:
    taken.append((layer, kv))


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Keep the reference from taking every core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("num_heads", "slots"), [(1, slice(0, 8)), (2, slice(0, 8)), (2, slice(0, 64))])
def test_what_is_read_is_not_the_pools_own_memory(num_heads: int, slots: slice) -> None:
    """A frame may wait long before it is sent: the next write would copy the whole pool, and both would stay."""
    with mx.stream(mx.cpu):
        pool = LayerPool(LayerSpec(num_heads, 8, 8, 0), 16, 4, mx.float32)
        before = np.array(pool.keys.parts[0], copy=False).ctypes.data
        kv = pool.read_bytes(slots)
        zeros = bytes(kv.keys)
        pool.write(slice(0, 8), *(mx.ones((num_heads, 8, 8)) for _ in range(2)))
        mx.eval(pool.arrays)
        after = np.array(pool.keys.parts[0], copy=False).ctypes.data

    assert bytes(kv.keys) == zeros
    assert after == before
