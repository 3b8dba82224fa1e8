"""What the torch engine does on a CUDA GPU, beside what the GPU could do and beside transformers.

Run as `baton bench gpu --out bench/results/gpu.json` on a machine with a GPU that Baton
with its extra `cuda` is installed on. Ends with status 1 where a number is missed. METHODOLOGY.md defines them.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype
from bench.microbench.torch import passes
from bench.microbench.torch.batches import Workload, run_baton, run_transformers
from bench.microbench.torch.findings import Line, findings_of, table_of
from bench.microbench.torch.shapes import LLAMA_3_8B, QWEN3_0_6B, TINY, Shape, random_model, random_runner
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-gpu/1"


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
    batches: tuple[tuple[int, int], ...]
    """Requests of each whole batch, and the most tokens of a prompt and of an output."""
    min_tokens: int
    max_step_tokens: int
    matmul_size: int
    num_bytes: int


_BATCHES = ((256, 1024), (256, 160), (32, 160), (1, 160))
_TRANSFORMERS_TOKENS = 160
"""Of a request that transformers is asked, too: longer ones take it minutes."""
FULL = Sizes(LLAMA_3_8B, QWEN3_0_6B, torch.bfloat16, (1, 32, 256), 1024, 64, 4096, _BATCHES, 100, 8192, 8192, 1 << 30)
DRY = Sizes(TINY, TINY, torch.float32, (1, 4), 32, 3, 48, ((1, 5), (4, 9)), 3, 32, 128, 1 << 16)
"""Runs through everything in a second or two; its numbers mean nothing."""

_BLOCK_TOKENS = 16
_TRANSFORMERS_BLOCK_TOKENS = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the file; 1 if a number is missed."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    lines = []
    sizes = DRY if options.dry else FULL
    if options.batches is not None:
        sizes = sizes._replace(batches=tuple(batch for batch in sizes.batches if batch[0] in options.batches))
    for line in measured(torch.device(options.device), sizes):
        print(json.dumps(line), file=sys.stderr, flush=True)
        lines.append(line)
    findings = findings_of(lines)
    Console(width=130).print(table_of(findings))
    if options.out:
        document = {
            "format": FORMAT,
            "command": "baton bench gpu" + (" --dry" if options.dry else ""),
            "machine": describe_machine(),
            "findings": [{**finding._asdict(), "share": finding.share} for finding in findings],
            "lines": lines,
        }
        write_results(options.out, document)
    return 0 if options.dry or all(finding.is_met for finding in findings) else 1


def measured(device: torch.device, sizes: Sizes) -> Iterator[Line]:
    """Yield each number as it is measured."""
    name = str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type
    yield {"kind": "machine", "device": name, "torch": torch.__version__, "python": platform.python_version()}
    yield {
        "kind": "rates",
        "matmul_flops": passes.matmul_flops(sizes.matmul_size, sizes.dtype, device),
        "memory_bytes_per_second": passes.memory_bytes_per_second(sizes.num_bytes, device),
        "host_bytes_per_second": passes.host_bytes_per_second(min(sizes.num_bytes, 1 << 28), device),
    }
    yield from _passes(sizes, device)
    for weight_dtype in ("int4", "fp8") if device.type == "cuda" else ("int4",):
        batch_sizes = sizes.batch_sizes[:2]
        runner = sized_runner(sizes.decoded, sizes, device, batch_sizes[-1], _decode_context(sizes), weight_dtype)
        yield from _decode(runner, sizes, batch_sizes, weight_dtype)
        runner.close()
    yield from _batches(sizes, device)


def _passes(sizes: Sizes, device: torch.device) -> Iterator[Line]:
    runner = sized_runner(sizes.decoded, sizes, device, max(sizes.batch_sizes), _decode_context(sizes))
    yield from _decode(runner, sizes, sizes.batch_sizes)
    num_tokens = sizes.num_prompt_tokens
    seconds_each = passes.prefill_seconds(runner, num_tokens=num_tokens, repeat=5)
    num_flops = sizes.decoded.prompt_flops(num_tokens)
    yield {"kind": "prefill", "num_tokens": num_tokens, "seconds": seconds_each, "flops": num_flops}
    times = passes.streaming_seconds(runner, num_tokens=num_tokens, repeat=5)
    yield {"kind": "streaming", **times._asdict(), "ratio": passes.ratio_of(times)}
    runner.close()


def _decode_context(sizes: Sizes) -> int:
    return sizes.context + (sizes.num_launches + 4) * 8  # batches of 256 just fit an H100


def _decode(
    runner: CudaGraphRunner, sizes: Sizes, batch_sizes: Sequence[int], weight_dtype: WeightDtype = "auto"
) -> Iterator[Line]:
    for batch_size in batch_sizes:
        for num_steps in (1, runner.max_launch_steps):
            seconds = passes.decode_seconds(
                runner,
                batch_size=batch_size,
                context=sizes.context,
                num_launches=sizes.num_launches,
                num_steps=num_steps,
            )
            context = sizes.context + sizes.num_launches * num_steps // 2  # on average
            num_bytes = sizes.decoded.step_bytes(batch_size, context, sizes.dtype.itemsize, weight_dtype)
            yield {
                "kind": "decode",
                "weights": weight_dtype,
                "batch_size": batch_size,
                "num_steps": num_steps,
                "step_seconds": seconds,
                "step_bytes": num_bytes,
            }


def _batches(sizes: Sizes, device: torch.device) -> Iterator[Line]:
    shape = sizes.batched
    for num_requests, max_tokens in sizes.batches:
        workload = Workload(num_requests, sizes.min_tokens, max_tokens, shape.vocabulary_size)
        told = {"kind": "batch", "num_requests": num_requests, "max_tokens": max_tokens}
        for temperature in (0.0, 0.6):
            runner = sized_runner(shape, sizes, device, num_requests, 2 * max_tokens)
            done = run_baton(runner, workload, temperature=temperature, max_step_tokens=sizes.max_step_tokens)
            yield {**told, "system": "baton", "temperature": temperature, **done._asdict()}
        if max_tokens > _TRANSFORMERS_TOKENS:
            continue
        model = random_model(
            shape, dtype=sizes.dtype, device=device, attention="sdpa", max_context=max(2 * max_tokens, 512)
        )
        num_blocks = -(-num_requests * 2 * max_tokens // _TRANSFORMERS_BLOCK_TOKENS) + 16
        done = run_transformers(model, workload, num_cache_blocks=num_blocks, max_step_tokens=sizes.max_step_tokens)
        yield {**told, "system": "transformers", "temperature": 0.0, **done._asdict()}


def sized_runner(
    shape: Shape,
    sizes: Sizes,
    device: torch.device,
    max_batch_size: int,
    max_context: int,
    weight_dtype: WeightDtype = "auto",
) -> CudaGraphRunner:
    """Return a runner of a shape with blocks for so many sequences, and for a prompt that is timed."""
    longest = max(max_context, sizes.num_prompt_tokens + 1)
    num_blocks = max_batch_size * -(-max_context // _BLOCK_TOKENS) + -(-longest // _BLOCK_TOKENS)
    return random_runner(
        shape,
        dtype=sizes.dtype,
        device=device,
        num_blocks=num_blocks,
        max_batch_size=max_batch_size,
        max_context=longest,
        weight_dtype=weight_dtype,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="torch device")
    parser.add_argument("--dry", action="store_true", help="tiny models, on any device; nothing is judged")
    parser.add_argument("--batches", type=int, nargs="*", help="numbers of requests of whole batches; default: all")
    parser.add_argument("--out", type=Path, help="JSON with all that was measured")
    return parser


if __name__ == "__main__":
    sys.exit(main())
