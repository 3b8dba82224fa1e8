"""What KV that arrives costs those who generate: their TPOT beside a long prompt's hand-over, and without it.

Run as root: `baton bench ingest --model services/baton/demo/checkpoint --out bench/results/ingest.json`. The prefill
node stands behind a link in a network namespace, unshaped and of 10 Gb/s. In each round requests generate alone, and
then beside prompts that are handed over without a break. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.links.shaped_cluster import Cluster, NodePlan, shaped_cluster
from bench.links.shaped_link import ShapedLink, shaped_link
from bench.plots import new_figure
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-ingest/1"
_NICENESS = 19  # the prefill node stands for another machine: it takes no core from those who generate
_MOCK = ("--mock-shape", "llama-3.1-8b", "--dtype", "bfloat16", "--num-blocks", "2400")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes, and what they do."""

    name: str
    prefill: NodePlan
    decode: NodePlan
    num_output_tokens: int
    """Of each request that generates."""
    num_arriving_tokens: int
    """Of each prompt that is handed over."""
    num_cached_prompts: int = 0
    """Prompts that take turns: the prefill node keeps them all, the decode node fewer. 0: each is new, and computed."""


@dataclass(frozen=True, slots=True)
class Round:
    """What was seen of one round, seconds."""

    alone: tuple[float, ...]
    """Gaps between tokens, all requests of the round one after the other."""
    beside: tuple[float, ...]
    """The same while KV arrived."""
    arrivals: tuple[float, ...]
    """From the call of a prompt that was handed over until its second token."""
    num_bytes: int
    """KV that arrived."""


@dataclass(frozen=True, slots=True)
class Row:
    """All rounds of one pair of nodes and link."""

    pair: str
    link_gigabits_per_second: float
    """0: not shaped."""
    num_requests: int
    """That generate at once."""
    rounds: tuple[Round, ...]

    def percentile(self, part: str, number: str, percent: float) -> float:
        """Return a percentile over all rounds: of "tpot", one per request, or "itl", of the parts "alone", "beside"."""
        values = [gap for each in self.rounds for gap in self._numbers(getattr(each, part), number)]
        return float(np.percentile(values, percent))

    def ratio(self, number: str, percent: float) -> float:
        """Return how much longer it takes beside KV that arrives."""
        return self.percentile("beside", number, percent) / self.percentile("alone", number, percent)

    @property
    def arrival_seconds(self) -> float:
        """Return the median time of a prompt that was handed over."""
        return float(np.median([seconds for each in self.rounds for seconds in each.arrivals]))

    @property
    def gigabytes_per_second(self) -> float:
        """Return KV that arrived, over the time of the prompts that brought it."""
        seconds = sum(sum(each.arrivals) for each in self.rounds)
        return sum(each.num_bytes for each in self.rounds) / seconds / 1e9

    def _numbers(self, gaps: Sequence[float], number: str) -> list[float]:
        if number == "itl":
            return list(gaps)
        return [float(part.mean()) for part in np.array_split(np.asarray(gaps), self.num_requests)]

    def summary(self) -> dict[str, float]:
        """Return the numbers of the table, seconds."""
        told = {
            f"{number}_p{percent}_{part}": self.percentile(part, number, percent)
            for number, percent, part in itertools.product(("tpot", "itl"), (50, 99), ("alone", "beside"))
        }
        told |= {
            f"{number}_p{percent}_ratio": self.ratio(number, percent)
            for number in ("tpot", "itl")
            for percent in (50, 99)
        }
        return {**told, "arrival_seconds": self.arrival_seconds, "gigabytes_per_second": self.gigabytes_per_second}


PAIRS = {
    "mock": Pair(
        "mock, llama-3.1-8b, 20 ms a step",
        NodePlan("mock", ("--mock-hardware", "h200", *_MOCK)),
        NodePlan("mock", ("--mock-step-seconds", "0.02", *_MOCK)),
        num_output_tokens=128,
        num_arriving_tokens=8192,
    ),
    "torch": Pair(
        "torch on a CPU, demo model",
        NodePlan("torch", ("--num-blocks", "2400")),
        NodePlan("torch", ("--num-blocks", "2400")),
        num_output_tokens=512,
        num_arriving_tokens=3072,
    ),
    "torch-cached": Pair(
        "torch on a CPU, cached prompts",
        NodePlan("torch", ("--num-blocks", "4800")),
        NodePlan("torch", ("--num-blocks", "2400", "--host-kv-bytes", "0")),
        num_output_tokens=512,
        num_arriving_tokens=3072,
        num_cached_prompts=20,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files."""
    options = _parser().parse_args(arguments)
    rows = list[Row]()
    with shaped_link() as link:
        print(f"{'nodes':34} {'Gb/s':>5} {'TPOT p99, ms':>17} {'ITL p99, ms':>17} {'ratios':>11} GB/s arrival")
        for engine in options.engines:
            for row in _measure(link, options, PAIRS[engine]):
                print(_line(row), flush=True)
                rows.append(row)
    if options.out:
        settings = {"requests": options.requests, "rounds": options.rounds}
        head = {"format": FORMAT, "machine": describe_machine(), "settings": settings}
        write_results(options.out, head | {"rows": [{"summary": row.summary(), **_rounded(row)} for row in rows]})
        draw_ingest(rows, options.out.with_suffix(".png"))
    return 0


def _line(row: Row) -> str:
    tpot, itl = ((row.percentile("alone", name, 99), row.percentile("beside", name, 99)) for name in ("tpot", "itl"))
    times = " ".join(f"{1000 * alone:8.2f} {1000 * beside:8.2f}" for alone, beside in (tpot, itl))
    ratios = f"{row.ratio('tpot', 99):5.2f} {row.ratio('itl', 99):5.2f}"
    head = f"{row.pair:34} {row.link_gigabits_per_second:5g}"
    return f"{head} {times} {ratios} {row.gigabytes_per_second:4.2f} {row.arrival_seconds:7.2f}"


def _rounded(row: Row) -> dict[str, object]:
    """Return a row with its samples in steps of a microsecond."""
    told = asdict(row)
    for each in told["rounds"]:
        for name in ("alone", "beside", "arrivals"):
            each[name] = [round(seconds, 6) for seconds in each[name]]
    return told


def _measure(link: ShapedLink, options: argparse.Namespace, pair: Pair) -> Iterator[Row]:
    seeds = itertools.count(1)
    prompts = itertools.cycle(range(pair.num_cached_prompts)) if pair.num_cached_prompts else itertools.count()
    with shaped_cluster(link, options.model, pair.decode, pair.prefill, prefill_niceness=_NICENESS) as cluster:
        _generate_batch(cluster, pair, options.requests, seeds)
        for _ in range(max(1, pair.num_cached_prompts)):
            _arrive(cluster, pair, next(prompts))
        for rate in sorted(options.gbps):  # 0, not shaped, before the others
            if rate:
                link.set_rate(1e9 * rate)
            rounds = tuple(_round(cluster, pair, options.requests, seeds, prompts) for _ in range(options.rounds))
            yield Row(pair.name, rate, options.requests, rounds)
        link.clear_rate()


def _round(cluster: Cluster, pair: Pair, num_requests: int, seeds: Iterator[int], prompts: Iterator[int]) -> Round:
    alone = _generate_batch(cluster, pair, num_requests, seeds)
    stop, arrivals, num_bytes = threading.Event(), list[float](), [0]

    def arrive() -> None:
        while not stop.is_set():
            seconds, size = _arrive(cluster, pair, next(prompts))
            arrivals.append(seconds)
            num_bytes[0] += size

    with ThreadPoolExecutor(1) as executor:
        arriving = executor.submit(arrive)
        try:
            beside = _generate_batch(cluster, pair, num_requests, seeds)
        finally:
            stop.set()
        arriving.result()
    return Round(alone, beside, tuple(arrivals), num_bytes[0])


def _generate_batch(cluster: Cluster, pair: Pair, num_requests: int, seeds: Iterator[int]) -> tuple[float, ...]:
    """Return the gaps between tokens of requests that generate at once, one request after the other."""
    placement = cluster.place(32, pair.num_output_tokens, is_remote=False)
    with ThreadPoolExecutor(num_requests) as executor:
        calls = [
            executor.submit(cluster.generate, placement, 32, pair.num_output_tokens, next(seeds))
            for _ in range(num_requests)
        ]
        streams = [call.result()[0] for call in calls]
    begin = max(times[0] for times in streams)  # from when all generate
    end = min(times[-1] for times in streams)
    gaps = [np.diff([time for time in times if begin <= time <= end]) for times in streams]
    shortest = min(map(len, gaps))
    return tuple(float(gap) for each in gaps for gap in each[:shortest])


def _arrive(cluster: Cluster, pair: Pair, prompt: int) -> tuple[float, int]:
    """Hand a prompt over; return its seconds and bytes.

    Raises:
        RuntimeError: If the decode node had a part of it.
    """
    placement = cluster.place(pair.num_arriving_tokens, 2, is_remote=True)
    is_cached = bool(pair.num_cached_prompts)
    started = time.perf_counter()
    times, summary = cluster.generate(placement, pair.num_arriving_tokens, 2, prompt, is_cached=is_cached)
    if summary.decode_cached_token_count:
        raise RuntimeError(f"prompt {prompt} came only in part: {summary}")
    return times[-1] - started, summary.kv_byte_count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench ingest", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder; mocks take its tokenizer")
    parser.add_argument("--engines", nargs="+", choices=tuple(PAIRS), default=list(PAIRS))
    parser.add_argument("--gbps", nargs="+", type=float, default=[0.0, 10.0], help="links; 0: not shaped")
    parser.add_argument("--requests", type=int, default=8, help="that generate at once")
    parser.add_argument("--rounds", type=int, default=5, help="of each engine and link")
    parser.add_argument("--out", type=Path, help="JSON with all samples; a picture is drawn beside it")
    return parser


def draw_ingest(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel per pair of nodes and link: the share of gaps longer than x, on logarithmic axes."""
    figure = new_figure(4.6 * len(rows), 4.2)
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        for part, style in (("alone", ":"), ("beside", "-")):
            gaps = sorted(1000 * gap for each in row.rounds for gap in getattr(each, part))
            shares = [1 - index / len(gaps) for index in range(len(gaps))]
            axes.plot(gaps, shares, style, color="C0", label=part)
        rate = row.link_gigabits_per_second
        link = f"{rate:g} Gb/s" if rate else "link not shaped"
        axes.set_title(f"{row.pair}\n{link}\nTPOT p99: {row.ratio('tpot', 99):.2f}", fontsize=9)
        axes.set(xscale="log", yscale="log", xlabel="ms between tokens", ylabel="share of gaps that are longer")
        axes.tick_params(axis="x", which="both", labelsize=7, labelrotation=60)  # less than a decade: all have numbers
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle("Requests that generate, alone and while long prompts' KV arrives")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
