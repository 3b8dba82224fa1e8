"""How long a prompt takes whose KV is in the pool, in host memory, on disk, or nowhere: through the engine.

Run as `baton bench kv-tiers --out bench/results/kv_tiers.json --plot bench/results/kv_tiers.png`. The four are
measured in turn, round by round, on one CPU thread; METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from baton.engine.engine import Engine
from baton.engine.events import Admitted, EngineEvent, Failed, TokenReady
from baton.engine.kv_cache.block_copy import read_blocks
from baton.engine.limits import SchedulerLimits
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import deliver
from baton.engine.runners.torch import load_torch_runner
from baton.kv.block_file import cache_identity
from baton.kv.disk_store import DiskBlockStore
from baton.kv.hashing import BlockHash, block_hashes, root_hash
from bench.engines.models import EIGHT_LAYERS, write_llama
from bench.plots import new_figure
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-kv-tiers/1"
TIERS = ("device", "host", "disk", "computed")
BLOCK_TOKENS = 16
NUM_BLOCKS = 512
TIMEOUT_SECONDS = 120.0


class Row(NamedTuple):
    """Prompts of one length whose KV was in one place."""

    num_tokens: int
    tier: str
    ttft_seconds: list[float]
    """One per round."""
    num_cached_tokens: list[int]
    """What the engine took over, one per round."""


class Bench:
    """An engine with all tiers, and the means to put a prompt's blocks into one of them."""

    def __init__(self, engine: Engine, disk: DiskBlockStore, folder: Path) -> None:
        self._engine = engine
        self._disk = disk
        self._folder = folder
        self._num_requests = 0

    @property
    def vocabulary_size(self) -> int:
        """Return the tokens that the model knows."""
        return self._engine.runner.info.vocabulary_size

    def place(self, prompt: Sequence[int], tier: str) -> None:
        """Leave the blocks of a prompt, which the pool holds, in a tier and those below it."""
        scheduler, runner = self._engine.scheduler, self._engine.runner
        root = root_hash(runner.info.layout.model_revision_digest, BLOCK_TOKENS)
        hashes = block_hashes(root, prompt, BLOCK_TOKENS)

        def place() -> None:
            block_ids = scheduler.pool.match(hashes)
            for block_hash, contents in zip(hashes, read_blocks(runner, block_ids), strict=True):
                scheduler.offload.store.put(block_hash, contents)
                self._disk.put(block_hash, [half for layer in contents for half in layer])
            if tier != "device":
                scheduler.pool.forget(block_ids)
            if tier == "disk":
                scheduler.offload.store.forget(hashes)

        self._do(place)
        assert self._disk.wait_until_idle(TIMEOUT_SECONDS), "the disk does not keep up"
        if tier == "disk":
            self._leave_page_cache(hashes)

    def ask(self, prompt: Sequence[int], *, is_computed: bool) -> tuple[float, int]:
        """Return the seconds until a prompt's first token, and how much of it was found."""
        events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
        self._num_requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        request = EngineRequest(str(self._num_requests), tuple(prompt), params, is_cache_bypassed=is_computed)
        started, num_cached = time.perf_counter(), 0
        self._engine.submit(request, events.put)
        while not isinstance(event := events.get(timeout=TIMEOUT_SECONDS), TokenReady):
            if isinstance(event, Failed):
                raise event.error
            num_cached = event.num_cached_tokens if isinstance(event, Admitted) else num_cached
        seconds = time.perf_counter() - started
        self._do(lambda: None)
        return seconds, num_cached

    def _leave_page_cache(self, hashes: Sequence[BlockHash]) -> None:
        """Make the disk's files be read from the disk."""
        names = {block_hash.hex() for block_hash in hashes}
        for path in self._folder.glob("*.kv"):
            if path.stem.rpartition("-")[2] in names:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _do(self, function: Callable[[], None]) -> None:
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def run() -> None:
            function()
            done.put(None)

        self._engine.call(run)
        done.get(timeout=TIMEOUT_SECONDS)


@contextmanager
def running_bench(model: Path) -> Iterator[Bench]:
    """Yield a bench on a model, on one CPU thread."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "kv"
        runner = load_torch_runner(
            model, model_id="m", dtype="float32", num_blocks=NUM_BLOCKS, block_tokens=BLOCK_TOKENS, num_threads=1
        )
        disk = DiskBlockStore(files, 2**30, cache_identity(runner.info.layout, BLOCK_TOKENS))
        disk.start()
        engine = Engine(runner, SchedulerLimits(max_host_bytes=2**30), post=deliver, disk=disk)
        engine.start()
        try:
            yield Bench(engine, disk, files)
        finally:
            engine.close()


def measure(bench: Bench, lengths: Sequence[int], num_rounds: int) -> list[Row]:
    """Return the rows; a first round warms everything up and is not counted."""
    vocabulary_size = bench.vocabulary_size
    rows = {(length, tier): Row(length, tier, [], []) for length in lengths for tier in TIERS}
    for round_index in range(-1, num_rounds):
        for length in lengths:
            for tier in TIERS:
                prompt = [(index * index * 31 + 7 * round_index + length) % vocabulary_size for index in range(length)]
                is_computed = tier == "computed"
                if not is_computed:
                    bench.ask(prompt, is_computed=False)
                    bench.place(prompt, tier)
                seconds, num_cached = bench.ask(prompt, is_computed=is_computed)
                if round_index >= 0:
                    rows[length, tier].ttft_seconds.append(seconds)
                    rows[length, tier].num_cached_tokens.append(num_cached)
    return list(rows.values())


def speedup(rows: Sequence[Row], row: Row) -> float:
    """Return how many times sooner a prompt has its token than one that is computed: the median of the rounds."""
    computed = next(each for each in rows if (each.num_tokens, each.tier) == (row.num_tokens, "computed"))
    return statistics.median(other / own for own, other in zip(row.ttft_seconds, computed.ttft_seconds, strict=True))


def table_of(rows: Sequence[Row]) -> Table:
    """Return a line per length and tier."""
    table = Table("prompt tokens", "KV", "TTFT ms", "times sooner", "cached tokens", title="prefix cache tiers")
    for row in rows:
        table.add_row(
            str(row.num_tokens),
            row.tier,
            f"{1000 * statistics.median(row.ttft_seconds):.1f}",
            f"{speedup(rows, row):.1f}",
            f"{statistics.median(row.num_cached_tokens):.0f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files."""
    parser = argparse.ArgumentParser(prog="baton bench kv-tiers", description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 3072])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_llama(Path(folder), 2048, 4096, **EIGHT_LAYERS)
        with running_bench(Path(folder)) as bench:
            rows = measure(bench, options.lengths, options.rounds)
    Console(width=100).print(table_of(rows))
    if options.out:
        lengths = " ".join(map(str, options.lengths))
        command = f"baton bench kv-tiers --lengths {lengths} --rounds {options.rounds}"
        head = {"format": FORMAT, "machine": describe_machine(), "command": command, "shape": EIGHT_LAYERS}
        write_results(options.out, head | {"rows": [row._asdict() for row in rows]})
    if options.plot:
        draw_kv_tiers(rows, options.plot)
    return 0


def draw_kv_tiers(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a group of bars per length, each with its range over the rounds."""
    lengths = sorted({row.num_tokens for row in rows})
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for index, tier in enumerate(TIERS):
        chosen = [row for length in lengths for row in rows if (row.num_tokens, row.tier) == (length, tier)]
        medians = [1000 * statistics.median(row.ttft_seconds) for row in chosen]
        low = [median - 1000 * min(row.ttft_seconds) for median, row in zip(medians, chosen, strict=True)]
        high = [1000 * max(row.ttft_seconds) - median for median, row in zip(medians, chosen, strict=True)]
        places = [group + 0.2 * (index - 1.5) for group in range(len(lengths))]
        bars = axes.bar(places, medians, 0.19, yerr=[low, high], label=tier, color=f"C{index}", capsize=2)
        axes.bar_label(bars, [f"x{speedup(rows, row):.1f}" for row in chosen], fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("time to first token, ms")
    axes.legend(title="KV from", fontsize=8)
    axes.set_title("Prefix cache tiers: times sooner than computed, one CPU thread", fontsize=10)
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
