"""Traces what the device does in three places where it may rest, and says how long it does.

Run `PYTHONPATH=services:.:tests python -m gpu.profiled --out FOLDER` beside a GPU: a step by weights in 4 bits, a
prompt whose KV is handed over, and the engine amid 256 requests. Each leaves a trace that chrome://tracing and
Perfetto open, and a line of its busy share, its longest rests and the kernels that took most.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.microbench.torch import passes
from bench.microbench.torch.__main__ import DRY, FULL, Sizes, sized_runner
from bench.microbench.torch.batches import Throughput, Workload, run_baton

_NUM_LONGEST, _NUM_KERNELS = 5, 14
_DEVICE_KINDS = {"kernel", "gpu_memcpy", "gpu_memset"}
_FIRST_LAUNCH, _NUM_LAUNCHES = 60, 20
"""Of the engine's, which are traced: all requests are decoded, none has ended but the shortest."""


def traced(name: str, work: Callable[[], object], folder: Path) -> dict[str, Any]:
    """Trace some work; return what the device did of it."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as recorded:
        work()
    path = folder / f"{name}.trace.json"
    recorded.export_chrome_trace(str(path))
    text = path.read_text()
    path.unlink()
    (folder / f"{name}.trace.json.gz").write_bytes(gzip.compress(text.encode(), 9))
    return {"name": name, **summary_of(json.loads(text)["traceEvents"])}


def summary_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the busy share of the device between its first and last work, its rests, and its kernels, microseconds."""
    own = sorted((event["ts"], event["ts"] + event["dur"], event) for event in events if _is_of_device(event))
    if not own:
        return {"busy_share": None}
    busy = rest = 0.0
    rests, end = [], own[0][0]
    for begin, finish, event in own:
        if begin > end:
            rests.append((begin - end, event["name"][:60]))
            rest += begin - end
        busy += max(0.0, finish - max(end, begin))
        end = max(end, finish)
    taken, counts = Counter[str](), Counter[str]()
    for begin, finish, event in own:
        taken[event["name"][:90]] += finish - begin
        counts[event["name"][:90]] += 1
    whole = busy + rest
    kernels = [[name, counts[name], round(us, 1), round(us / whole, 4)] for name, us in taken.most_common(_NUM_KERNELS)]
    histogram = Counter(len(str(int(gap))) for gap, _ in rests)
    return {
        "microseconds": whole,
        "busy_share": busy / whole,
        "num_rests": len(rests),
        "rests_by_digits_of_microseconds": dict(sorted(histogram.items())),
        "longest_rests": sorted(rests, reverse=True)[:_NUM_LONGEST],
        "kernels": kernels,
    }


def _is_of_device(event: dict[str, Any]) -> bool:
    return event.get("ph") == "X" and event.get("cat") in _DEVICE_KINDS


def profile_decode(sizes: Sizes, device: torch.device, folder: Path) -> dict[str, Any]:
    """Trace launches of several steps of one sequence by weights in 4 bits."""
    runner = sized_runner(sizes.decoded, sizes, device, 1, sizes.context + 512, weight_dtype="int4")
    arguments = {"batch_size": 1, "context": sizes.context, "num_launches": 4, "num_steps": runner.max_launch_steps}
    passes.decode_seconds(runner, **arguments)
    found = traced("decode-int4", lambda: passes.decode_seconds(runner, **arguments), folder)
    runner.close()
    return found


def profile_prompt(sizes: Sizes, device: torch.device, folder: Path) -> dict[str, Any]:
    """Trace a prompt with and without its KV handed over."""
    runner = sized_runner(sizes.decoded, sizes, device, 1, sizes.num_prompt_tokens + 16)
    passes.streaming_seconds(runner, num_tokens=sizes.num_prompt_tokens, repeat=1)
    work = lambda: passes.streaming_seconds(runner, num_tokens=sizes.num_prompt_tokens, repeat=1)  # noqa: E731
    found = traced("prompt-handed-over", work, folder)
    runner.close()
    return found


class _Counting:
    """A runner that counts launches, seen from another thread."""

    def __init__(self, runner: Any) -> None:
        self._runner, self.starts = runner, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, *arguments: Any, **others: Any) -> Any:
        self.starts.append(time.perf_counter())
        return self._runner.launch(*arguments, **others)


def profile_engine(sizes: Sizes, device: torch.device, folder: Path) -> dict[str, Any]:
    """Trace the engine amid a whole batch, which runs once untraced before."""
    num_requests, max_tokens = sizes.batches[0]
    workload = Workload(num_requests, sizes.min_tokens, max_tokens, sizes.batched.vocabulary_size)
    first = max(min(_FIRST_LAUNCH, max_tokens // 3), 1)

    def new_runner() -> Any:
        return _Counting(sized_runner(sizes.batched, sizes, device, num_requests, 2 * max_tokens))

    def run(runner: Any) -> Throughput:
        return run_baton(runner, workload, temperature=0.6, max_step_tokens=sizes.max_step_tokens)

    runner = new_runner()
    done = run(runner)
    between = sorted(after - before for before, after in pairwise(runner.starts))
    untraced = {"tokens_per_second": done.num_output_tokens / done.seconds, **done._asdict()}
    untraced["launches"] = len(runner.starts)
    untraced["launch_every_seconds"] = [between[int(len(between) * q)] for q in (0.1, 0.5, 0.9, 0.99)]

    runner = new_runner()
    thread = threading.Thread(target=run, args=(runner,))
    thread.start()

    def wait_for(count: int) -> None:
        while len(runner.starts) < count and thread.is_alive():
            time.sleep(0.002)

    wait_for(first)
    found = traced("engine-256", lambda: wait_for(first + _NUM_LAUNCHES), folder)
    thread.join()
    return {**found, "untraced": untraced}


def main(arguments: Sequence[str] | None = None) -> int:
    """Trace, print a line each, leave all in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=["engine", "decode", "prompt"])
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    sizes = FULL if device.type == "cuda" else DRY
    lines = []
    for name, work in (("engine", profile_engine), ("decode", profile_decode), ("prompt", profile_prompt)):
        if name in options.only:
            lines.append(work(sizes, device, options.out))
            print(json.dumps(lines[-1]), flush=True)
    (options.out / "profiled.json").write_text(json.dumps(lines, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
