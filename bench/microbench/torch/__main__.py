"""Prints what the torch engine does on a device, a JSON object per line, as each is measured."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import random
from typing import NamedTuple

import torch

from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from bench.microbench.torch.batches import Workload, run_baton, run_transformers
from bench.microbench.torch.cases import kernel_errors, served_cases
from bench.microbench.torch.elementwise import between_errors
from bench.microbench.torch.passes import decode_seconds, prefill_seconds, ratio_of, streaming_seconds
from bench.microbench.torch.rates import host_bytes_per_second, matmul_flops, memory_bytes_per_second
from bench.microbench.torch.shapes import (
    LLAMA_3_8B,
    QWEN3_0_6B,
    TINY,
    Shape,
    random_model,
    random_runner,
)


class Sizes(NamedTuple):
    """How much is measured."""

    decoded: Shape
    """Model of decode, prefill and hand-over."""
    batched: Shape
    """Model of the batches."""
    dtype: torch.dtype
    batch_sizes: tuple[int, ...]
    context: int
    num_launches: int
    num_prompt_tokens: int
    num_requests: int
    min_tokens: int
    max_tokens: int
    max_step_tokens: int
    matmul_size: int
    num_bytes: int


FULL = Sizes(LLAMA_3_8B, QWEN3_0_6B, torch.bfloat16, (1, 32, 256), 1024, 64, 4096, 256, 100, 1024, 8192, 8192, 1 << 30)
DRY = Sizes(TINY, TINY, torch.float32, (1, 4), 32, 3, 48, 4, 3, 9, 32, 128, 1 << 16)
"""Runs through everything in a second or two; its numbers mean nothing."""

_BLOCK_TOKENS = 16
_TRANSFORMERS_BLOCK_TOKENS = 256


def main() -> None:
    """Measure everything."""
    options = _parser().parse_args()
    logging.basicConfig(level=logging.WARNING)
    device, sizes = torch.device(options.device), DRY if options.dry else FULL
    _say("machine", device=_name_of(device), torch=torch.__version__, python=platform.python_version())
    if device.type == "cuda":
        seed = random.SystemRandom().randrange(2**31)
        errors = kernel_errors(served_cases(), seed, device=options.device)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            errors |= between_errors(seed, dtype, device=options.device, size=4096)
        _say("kernel", seed=seed, errors=errors)
    _measure_rates(sizes, device)
    _measure_passes(sizes, device)
    _measure_batches(sizes, device)


def _measure_rates(sizes: Sizes, device: torch.device) -> None:
    _say(
        "rates",
        matmul_flops=matmul_flops(sizes.matmul_size, sizes.dtype, device),
        memory_bytes_per_second=memory_bytes_per_second(sizes.num_bytes, device),
        host_bytes_per_second=host_bytes_per_second(min(sizes.num_bytes, 1 << 28), device),
    )


def _measure_passes(sizes: Sizes, device: torch.device) -> None:
    runner = _runner(sizes.decoded, sizes, device, max(sizes.batch_sizes), sizes.context + 1024)
    for batch_size in sizes.batch_sizes:
        for num_steps in (1, runner.max_launch_steps):
            seconds = decode_seconds(
                runner,
                batch_size=batch_size,
                context=sizes.context,
                num_launches=sizes.num_launches,
                num_steps=num_steps,
            )
            num_bytes = sizes.decoded.step_bytes(batch_size, sizes.context, sizes.dtype.itemsize)
            _say("decode", batch_size=batch_size, num_steps=num_steps, step_seconds=seconds, step_bytes=num_bytes)
    num_tokens = sizes.num_prompt_tokens
    seconds_each = prefill_seconds(runner, num_tokens=num_tokens, repeat=5)
    _say("prefill", num_tokens=num_tokens, seconds=seconds_each, flops=sizes.decoded.prompt_flops(num_tokens))
    times = streaming_seconds(runner, num_tokens=num_tokens, repeat=5)
    _say("streaming", **times._asdict(), ratio=ratio_of(times))
    runner.close()


def _measure_batches(sizes: Sizes, device: torch.device) -> None:
    shape = sizes.batched
    workload = Workload(sizes.num_requests, sizes.min_tokens, sizes.max_tokens, shape.vocabulary_size)
    for temperature in (0.0, 0.6):
        runner = _runner(shape, sizes, device, sizes.num_requests, 2 * sizes.max_tokens)
        done = run_baton(runner, workload, temperature=temperature, max_step_tokens=sizes.max_step_tokens)
        _say_batch("baton", temperature, done.num_output_tokens, done.seconds)
    model = random_model(
        shape, dtype=sizes.dtype, device=device, attention="sdpa", max_context=max(2 * sizes.max_tokens, 512)
    )
    num_cache_blocks = -(-sizes.num_requests * 2 * sizes.max_tokens // _TRANSFORMERS_BLOCK_TOKENS) + 16
    done = run_transformers(model, workload, num_cache_blocks=num_cache_blocks, max_step_tokens=sizes.max_step_tokens)
    _say_batch("transformers", 0.0, done.num_output_tokens, done.seconds)


def _runner(shape: Shape, sizes: Sizes, device: torch.device, max_batch_size: int, max_context: int) -> CudaGraphRunner:
    longest = max(max_context, sizes.num_prompt_tokens + 1)
    num_blocks = max_batch_size * -(-max_context // _BLOCK_TOKENS) + -(-longest // _BLOCK_TOKENS)
    return random_runner(
        shape,
        dtype=sizes.dtype,
        device=device,
        num_blocks=num_blocks,
        max_batch_size=max_batch_size,
        max_context=longest,
    )


def _say_batch(system: str, temperature: float, num_output_tokens: int, seconds: float) -> None:
    _say("batch", system=system, temperature=temperature, num_output_tokens=num_output_tokens, seconds=seconds)


def _say(kind: str, **values: object) -> None:
    print(json.dumps({"kind": kind, **values}), flush=True)


def _name_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.microbench.torch", description=__doc__)
    parser.add_argument("--device", default="cuda", help="torch device")
    parser.add_argument("--dry", action="store_true", help="tiny models and few steps")
    return parser


if __name__ == "__main__":
    main()
