"""Times products by packed weights on a GPU, by kernels and tilings: which are to be served.

Run `PYTHONPATH=services:.:tests python -m gpu.packed.sweep --out packed.json`. Workers compile all variants first; then
each is timed in a CUDA graph, Llama-3-8B's weights in several copies, so that no cache holds them. What it has decided
is in `packed_linear.tiling_for`, what it has printed in bench/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from baton.engine.runners.torch.ops.cuda.packed_linear import Tiling, expanded, multiply, tiling_for
from baton.engine.runners.torch.ops.cuda.packed_weight import Format, PackedWeight

SHAPES = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "head": (128256, 4096),
}
"""Outputs and inputs of Llama-3-8B's products."""
FORMATS = {"int4": Format(4, 64, "affine", "bf16"), "fp8": Format(8, 128, "e4m3", "f32")}
_COLD_BYTES = 150_000_000
"""Of all copies of a weight: three times an H100's cache."""
_GRAPH_SECONDS, _COPY_BYTES = 4e-4, 1 << 31


class Item(NamedTuple):
    """A product to be timed."""

    format: str
    shape: str
    num_rows: int
    tiling: Tiling


def items() -> Iterator[Item]:
    """Yield what is timed: what is served, and what might take its place."""
    for name, shape in ((name, shape) for name in FORMATS for shape in SHAPES):
        for num_rows, by_codes in ((1, True), (16, True), (32, False), (32, True)):
            by_codes = by_codes and name == "int4"
            for outputs, warps, stages in ((64, 2, 3), (64, 2, 4), (64, 4, 3), (128, 4, 3)):
                for splits in (1, 2, 4, 8):
                    rows = max(8, num_rows)
                    yield Item(name, shape, num_rows, Tiling(outputs, rows, splits, warps, stages, by_codes))


def random_packed(name: str, shape: str, device: torch.device) -> PackedWeight:
    """Return a weight of random codes."""
    kind, (num_outputs, num_inputs) = FORMATS[name], SHAPES[shape]
    num_blocks = num_inputs // (32 // kind.bits * 32)
    sizes = (num_blocks, num_outputs, 32)
    words = torch.randint(-(1 << 31), 1 << 31, sizes, device=device, dtype=torch.int32)
    groups = (num_inputs // kind.group_size, num_outputs)
    if kind.scales == "f32":
        words &= 0x3F3F3F3F  # no NaN
        scales = torch.rand(groups, device=device).mul_(0.01).view(torch.int32)
    else:
        pairs = torch.rand(*groups, 2, device=device).mul_(0.01).bfloat16()
        scales = pairs.view(torch.int32)[..., 0].contiguous()
    return PackedWeight(words, scales, num_inputs, kind)


def graph_seconds(calls: Sequence[Callable[[], object]]) -> float:
    """Return the median seconds of a call, all replayed one behind the other in a graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.current_stream().wait_stream(stream)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    graph.replay()
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / len(kept))
    return float(statistics.median(times))


def timed(chosen: Sequence[Item], device: torch.device) -> Iterator[dict[str, object]]:
    """Yield a line per item; those whose sizes a device does not bear say why."""
    arrivals = torch.zeros(1 << 15, dtype=torch.int32, device=device)
    for name, shape in ((name, shape) for name in FORMATS for shape in SHAPES):
        own = [item for item in chosen if (item.format, item.shape) == (name, shape)]
        if not own:
            continue
        first = random_packed(name, shape, device)
        num_bytes = first.words.nbytes + first.scales.nbytes
        copies = [first, *(random_packed(name, shape, device) for _ in range(max(1, _COLD_BYTES // num_bytes)))]
        num_calls = len(copies) * max(1, int(_GRAPH_SECONDS * 2.5e12 / num_bytes / len(copies)))
        for item in own:
            rows = torch.randn(item.num_rows, first.num_inputs, device=device).bfloat16()
            line = {"format": name, "shape": shape, "num_rows": item.num_rows, **item.tiling._asdict()}
            try:
                seconds = graph_seconds(
                    [_call(rows, copies[i % len(copies)], arrivals, item) for i in range(num_calls)]
                )
            except Exception as error:
                yield line | {"error": f"{type(error).__name__}: {error}"[:200]}
                continue
            served = tiling_for(item.num_rows, first, torch.bfloat16, _num_multiprocessors(device))
            is_served = item.tiling == served
            yield line | {"us": seconds * 1e6, "bytes_per_second": num_bytes / seconds, "is_served": is_served}
        seconds = graph_seconds([partial(expanded, first, 0, 4096, torch.bfloat16)] * 8)
        yield {"format": name, "shape": shape, "expanded": 4096, "us": seconds * 1e6}


def _call(rows: torch.Tensor, weight: PackedWeight, arrivals: torch.Tensor, item: Item) -> Callable[[], torch.Tensor]:
    return lambda: multiply(rows, weight, None, arrivals, item.tiling)


def _num_multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_share(chosen: Sequence[Item], index: int, count: int, device: torch.device) -> None:
    """Compile one of so many shares of all variants, for Triton's cache on disk."""
    arrivals = torch.zeros(1 << 15, dtype=torch.int32, device=device)
    variants = {
        (item.format, item.shape, item.tiling._replace(splits=min(2, item.tiling.splits))): item for item in chosen
    }
    for item in list(variants.values())[index::count]:
        weight = random_packed(item.format, item.shape, device)
        rows = torch.zeros(item.num_rows, weight.num_inputs, device=device, dtype=torch.bfloat16)
        try:
            multiply(rows, weight, None, arrivals, item.tiling)
        except Exception as error:
            print(item, error, file=sys.stderr)


def copied_bytes_per_second(device: torch.device) -> float:
    """Return what a copy within the device's memory reads and writes in a second."""
    source = torch.zeros(_COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * int(source.nbytes) / graph_seconds([lambda: target.copy_(source)] * 6)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, time, print the best of each product, write all lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--share", type=int, default=-1, help="which worker this is")
    parser.add_argument("--formats", nargs="*", default=[*FORMATS])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 16, 32])
    options, device, started = parser.parse_args(arguments), torch.device("cuda"), time.perf_counter()
    chosen = [item for item in items() if item.format in options.formats and item.num_rows in options.rows]
    if options.share >= 0:
        compile_share(chosen, options.share, options.workers, device)
        return 0
    command = [sys.executable, "-m", "gpu.packed.sweep", "--workers", str(options.workers)]
    command += ["--formats", *options.formats, "--rows", *map(str, options.rows), "--share"]
    for worker in [subprocess.Popen([*command, str(index)]) for index in range(options.workers)]:
        worker.wait()
    print(f"compiled in {time.perf_counter() - started:.0f} s", flush=True)
    copied, lines = copied_bytes_per_second(device), list[dict[str, object]]()
    for line in timed(chosen, device):
        lines.append(line)
        if options.out and "expanded" in line:  # what a run that is cut short leaves
            _write(options.out, device, copied, lines)
    products: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for line in lines:
        if "bytes_per_second" in line:
            products.setdefault((line["format"], line["shape"], line["num_rows"]), []).append(line)
    for name, own in products.items():
        for line in sorted(own, key=lambda line: float(str(line["us"])))[:3] + [
            line for line in own if line["is_served"]
        ]:
            share = float(str(line["bytes_per_second"])) / copied
            print(*name, f"{line['us']:.1f} us, {share:.2f} of a copy's rate:", json.dumps(line))
    return 0


def _write(path: Path, device: torch.device, copied: float, lines: Sequence[dict[str, object]]) -> None:
    found = {"device": torch.cuda.get_device_name(device), "copied_bytes_per_second": copied, "lines": lines}
    path.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
