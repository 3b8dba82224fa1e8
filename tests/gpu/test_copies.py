"""What copy streams hand over under many prompts at once is, byte for byte, what the blocks hold."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from transformers import LlamaConfig

from baton.engine.runners.base import LayerKv, Span
from baton.engine.runners.torch import TorchRunner
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from bench.microbench.torch.shapes import Shape, random_runner
from checkpoints import CheckpointName, checkpoint
from gpu.device import BLOCK_TOKENS, DEVICE, IS_CUDA, SEED, device_runner

WIDE = Shape("wide", LlamaConfig, 12, 2048, 4096, 16, 8, 128, 4096, is_tied=False)
NARROW = Shape("narrow", LlamaConfig, 3, 64, 128, 4, 2, 16, 512, is_tied=False)
SMALL_SEGMENT_BYTES = 2**21
"""What torch reserves for tensors below 1 MiB: one more where those before are still being copied, which is timing."""
Handed = dict[tuple[int, int, int], LayerKv]
"""By prompt, layer and first position."""


def random_tables(draw: random.Random, num_blocks: int, lengths: list[int]) -> list[list[int]]:
    """Return scattered blocks for prompts of some lengths."""
    free = draw.sample(range(num_blocks), num_blocks)
    return [[free.pop() for _ in range(-(-length // BLOCK_TOKENS))] for length in lengths]


def span_of(handed: Handed, prompt: int, tokens: list[int], start: int, end: int, table: list[int]) -> Span:
    """Return a chunk of a prompt whose layers are kept as they are handed over."""

    def sink(layer: int, kv: LayerKv) -> None:
        assert (prompt, layer, start) not in handed
        handed[prompt, layer, start] = kv

    return Span(tokens[start:end], start, table, needs_logits=end == len(tokens), layer_sink=sink)


def check_handed(
    runner: TorchRunner, handed: Handed, tables: list[list[int]], ends: dict[tuple[int, int], int]
) -> None:
    """Compare every chunk of every layer with its blocks."""
    num_layers = runner.info.layout.num_layers
    assert len(handed) == num_layers * len(ends)
    for (prompt, layer, start), kv in handed.items():
        stored = runner.read_kv(tables[prompt], layer, start, ends[prompt, start] - start)
        assert bytes(kv.keys) == bytes(stored.keys), f"keys of layer {layer} of prompt {prompt} from {start}"
        assert bytes(kv.values) == bytes(stored.values), f"values of layer {layer} of prompt {prompt} from {start}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_several_passes_under_way(dtype: torch.dtype) -> None:
    """Chunks of prompts in passes that are launched before those before them are over; decode goes on between them."""
    draw = random.Random(SEED)
    shape = WIDE if IS_CUDA else NARROW
    lengths = [draw.randint(200, 900) if IS_CUDA else draw.randint(20, 60) for _ in range(12)]
    runner = random_runner(
        shape,
        dtype=dtype,
        device=DEVICE,
        num_blocks=1024,
        max_batch_size=4,
        max_context=2048,
        block_tokens=BLOCK_TOKENS,
    )
    assert isinstance(runner, CudaGraphRunner)
    *tables, decoding = random_tables(draw, 1024, [*lengths, 400])
    prompts = [draw.choices(range(shape.vocabulary_size), k=length) for length in lengths]
    handed: Handed = {}
    ends: dict[tuple[int, int], int] = {}
    launched, position = [], 0
    starts = dict.fromkeys(range(len(prompts)), 0)
    while starts:
        spans = []
        for prompt in draw.sample(sorted(starts), min(3, len(starts))):
            start = starts[prompt]
            end = min(start + draw.randint(1, 300), lengths[prompt])
            ends[prompt, start] = end
            spans.append(span_of(handed, prompt, prompts[prompt], start, end, tables[prompt]))
            if end == lengths[prompt]:
                del starts[prompt]
            else:
                starts[prompt] = end
        launched.append(runner.launch(spans))
        for _ in range(draw.randint(0, 3)):
            launched.append(runner.launch([Span([7], position, decoding, needs_logits=True)]))
            position += 1
        if len(launched) > 6:
            launched.pop(0).tokens()
    for each in launched:
        each.tokens()

    check_handed(runner, handed, tables, ends)
    runner.close()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "mixtral", "gemma4_e2b"])
def test_families(name: CheckpointName) -> None:
    """In Baton's code and in transformers', several prompts in a pass, in chunks."""
    draw = random.Random(SEED)
    lengths = [70, 33, 150, 16]
    runner = device_runner(checkpoint(name), num_blocks=64)
    tables = random_tables(draw, 64, lengths)
    prompts = [draw.choices(range(3, 500), k=length) for length in lengths]
    handed: Handed = {}
    ends: dict[tuple[int, int], int] = {}
    chunks = defaultdict(list)
    for prompt, length in enumerate(lengths):
        for index, start in enumerate(range(0, length, 40)):
            ends[prompt, start] = min(start + 40, length)
            chunks[index].append(span_of(handed, prompt, prompts[prompt], start, ends[prompt, start], tables[prompt]))
    for spans in chunks.values():
        runner.launch(spans).tokens()

    owners = {layer for _, layer, _ in handed}
    assert len(handed) == len(owners) * len(ends)
    for (prompt, layer, start), kv in handed.items():
        stored = runner.read_kv(tables[prompt], layer, start, ends[prompt, start] - start)
        assert (bytes(kv.keys), bytes(kv.values)) == (bytes(stored.keys), bytes(stored.values))
    runner.close()


def test_blocks_leave_while_passes_write_over_them() -> None:
    """Taken in by another thread, each copy is what its blocks held when it was begun, whatever is launched after."""
    draw = random.Random(SEED)
    shape, length = (WIDE, 125 * BLOCK_TOKENS) if IS_CUDA else (NARROW, 6 * BLOCK_TOKENS)
    num_blocks = length // BLOCK_TOKENS
    runner = random_runner(
        shape,
        dtype=torch.bfloat16,
        device=DEVICE,
        num_blocks=num_blocks,
        max_batch_size=4,
        max_context=2048,
        block_tokens=BLOCK_TOKENS,
    )
    prompts = [draw.choices(range(shape.vocabulary_size), k=length) for _ in range(4)]
    tables = [draw.sample(range(num_blocks), num_blocks) for _ in range(3)] + [list(range(num_blocks))]
    expected = []
    for prompt, table in zip(prompts, tables, strict=True):
        runner.forward([Span(prompt, 0, table, needs_logits=True)])
        expected.append(runner.begin_copies(table).blocks())
    assert len({bytes(blocks[0][0].keys) for blocks in expected}) == len(prompts)

    with ThreadPoolExecutor(1) as lane:
        taken = []
        for turn in range(8):
            table = tables[turn % 4]
            runner.launch([Span(prompts[turn % 4], 0, table, needs_logits=True)])
            copies = runner.begin_copies(table)
            taken.append(lane.submit(lambda copies=copies: (copies.wait(), copies.blocks())[1]))
        for turn, each in enumerate(taken):
            assert each.result() == expected[turn % 4], f"turn {turn}"
    runner.close()


def test_memory_of_copies_is_lent_again() -> None:
    """Prompt after prompt is handed over; neither the device's memory nor the process's grows, pinned or not."""
    if not IS_CUDA:
        pytest.skip("a CPU's memory is not counted")
    length, taken = 600, []
    runner = random_runner(
        WIDE, dtype=torch.bfloat16, device=DEVICE, num_blocks=128, max_batch_size=4, max_context=2048
    )
    table = list(range(38))
    for seed in range(24):
        handed: Handed = {}
        prompt = random.Random(seed).choices(range(WIDE.vocabulary_size), k=length)
        for start, end in ((0, 256), (256, length)):
            runner.launch([span_of(handed, 0, prompt, start, end, table)]).tokens()
        check_handed(runner, handed, [table], {(0, 0): 256, (0, 256): length})
        taken.append(
            (
                torch.cuda.memory_allocated(DEVICE),
                torch.cuda.memory_reserved(DEVICE),
                psutil.Process().memory_info().rss,
            )
        )
    runner.close()

    allocated, reserved, resident = zip(*taken, strict=True)
    assert max(allocated[8:]) <= allocated[7]
    assert max(reserved[8:]) <= reserved[7] + SMALL_SEGMENT_BYTES
    handed_bytes = sum(len(kv.keys) + len(kv.values) for kv in handed.values())
    assert max(resident[8:]) <= resident[7] + 4 * handed_bytes, torch.cuda.memory.host_memory_stats()
