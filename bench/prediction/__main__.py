"""Replays a trace against unlike nodes and compares what the router predicted of every request with what happened.

Run as `baton bench prediction --dataset azure --path azure_llm_conv_2023.csv --out prediction.json`: five mock nodes
at 30, 60, 90 and 150 % of what they can serve by formula; `--engines torch,mlx` takes a real pair. With `--cards` each
mock has a host of its own, with the network card that its like has. The file is written after every load.
METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean

from baton.internal.v1.node_pb2 import NodeDescription
from bench.host_cpu import HostCpu
from bench.links.hosts import ROUTER, hosted_cluster
from bench.links.network import network_of
from bench.local_cluster import DEMO_MODEL, NodeTable, mock_node, real_node, registered_nodes, running_cluster
from bench.node_rates import capacity_per_second, rates_of
from bench.options import at_least, engine_pair, existing_file, list_of, positive, say
from bench.prediction.client import PredictionClient, Request
from bench.prediction.report import LoadReport, Spread, identical_spreads
from bench.prediction.sample import Sample
from bench.results_file import describe_machine, write_results
from bench.workloads.dataset import Session, TokenIds
from bench.workloads.traces import Scaling, TraceRow, read_azure, read_mooncake, replay, replayed

FORMAT = "baton-bench-prediction/1"
_READERS: dict[str, Callable[[Path], Iterator[TraceRow]]] = {"azure": read_azure, "mooncake": read_mooncake}
_FACTORS = {"azure": 1.0, "mooncake": 0.1}
"""On the lengths of each kind of trace: pools of 8,192 blocks hold some dozens of such requests."""
_REAL_CONTEXT_TOKENS = 3500
"""The demo model has 4096."""
_MOCK_NODES = (
    ("prefill", "a100"),
    ("prefill", "dgx-spark"),
    ("decode", "m3-ultra"),
    ("decode", "m3-ultra"),
    ("decode", "dgx-spark"),
)
_CARDS = {"a100": 25e9, "dgx-spark": 10e9, "m3-ultra": 10e9}
"""Bits per second of each one's Ethernet."""
_VOCABULARY = TokenIds(3, 250)
_NUM_WARM_UP = 12
_NUM_IDENTICAL = 12


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the numbers of each load, write the files; 1 if a term or the regret is not as it shall be."""
    options = _parser().parse_args(arguments)
    is_mock = "mock" in options.engines
    if options.cards and not is_mock:
        _parser().error("--cards: the cards are those of the mocks' hardware; a real pair has this machine's")
    if options.length_factor is None:
        options.length_factor = _FACTORS[options.dataset]
    if not is_mock:
        options.max_context_tokens = min(options.max_context_tokens, _REAL_CONTEXT_TOKENS)
    scaling = Scaling(options.length_factor, options.max_context_tokens)
    rows = list(islice(filter(scaling.fits, _READERS[options.dataset](options.path)), options.count))
    if len(rows) < 2:
        print(f"baton bench prediction: {options.path.name} has {len(rows)} requests that fit", file=sys.stderr)
        return 2
    nodes = [mock_node(*each, options.time_scale) for each in _MOCK_NODES]
    if not is_mock:
        nodes = list(map(real_node, ("prefill", "decode"), options.engines))
    with _running(nodes, options) as router:
        described = [state.node for state in registered_nodes(router, len(nodes))]
        reports = asyncio.run(_measure(router, described, rows, scaling, options))
    return 1 if any(report.failures for report in reports) else 0


@contextmanager
def _running(nodes: Sequence[NodeTable], options: argparse.Namespace) -> Iterator[str]:
    """Run a cluster; yield the router's address."""
    if not options.cards:
        with running_cluster(options.model, nodes) as endpoints:
            yield endpoints.router
        return
    with network_of(len(nodes)) as network:
        for host, (_, hardware) in enumerate(_MOCK_NODES, 1):
            for inwards in (False, True):
                network.set_rate(host, _CARDS[hardware] / options.time_scale, inwards=inwards)
        with hosted_cluster(network, options.model, [(node, host) for host, node in enumerate(nodes, 1)]):
            yield ROUTER


async def _measure(
    router: str,
    described: Sequence[NodeDescription],
    rows: Sequence[TraceRow],
    scaling: Scaling,
    options: argparse.Namespace,
) -> list[LoadReport]:
    reports: list[LoadReport] = []
    prompt = mean(scaling.tokens(row.prompt_tokens) for row in rows)
    output = mean(scaling.tokens(row.output_tokens) for row in rows)
    is_mock = "mock" in options.engines
    scale = options.time_scale if is_mock else 1.0
    capacity = capacity_per_second(list(map(rates_of, described)), prompt, output)
    async with PredictionClient(router, described[0], 600.0 * scale) as client:
        print(f"{options.dataset}: {len(rows)} requests, mean {prompt:.0f} + {output:.0f} tokens; the nodes can serve")
        print(f"{capacity * scale:.2f} of them per second by formula, {capacity:.2f} with time x {scale:g}", flush=True)
        seconds = sum(len(rows) / (load * capacity) for load in options.loads)
        say(f"{len(options.loads)} loads: {seconds / 60:.0f} min of arrivals")
        warm_up = _requests(rows[:_NUM_WARM_UP], scaling, f"warm-up/{options.seed}", 0.3 * capacity)
        await client.run(warm_up)
        identical = await _identical(client, round(prompt), round(output), options.seed) if not is_mock else {}
        for load in options.loads:
            requests = _requests(rows, scaling, f"{options.seed}/{load}", load * capacity)
            cpu = HostCpu()
            samples = await client.run(requests)
            report = LoadReport(load, load * capacity, scale, cpu.share(), tuple(samples), identical)
            reports.append(report)
            print("\n".join(report.lines()), flush=True)
            if options.out:
                _write(options, capacity, reports)
    return reports


async def _identical(
    client: PredictionClient, num_prompt_tokens: int, num_output_tokens: int, seed: int
) -> dict[str, Spread]:
    """Return the spread of requests of the mean lengths, one after the other, each prompt new."""
    samples: list[Sample] = []
    for number in range(_NUM_IDENTICAL):
        tokens = tuple(_VOCABULARY.draw(Random(f"identical/{seed}/{number}"), num_prompt_tokens))
        request = Request(f"identical-{seed}-{number}", 0.0, tokens, num_output_tokens)
        samples += await client.run([request])
    return identical_spreads(samples)


def _requests(rows: Sequence[TraceRow], scaling: Scaling, seed: str, per_second: float) -> list[Request]:
    """Return a trace's requests at a mean rate; every seed has prompts of its own, which share what the trace says."""
    number = Random(seed).getrandbits(48)
    sessions: list[Session] = replay(rows, _VOCABULARY, number, len(rows), scaling)
    span = rows[-1].arrival_seconds - rows[0].arrival_seconds
    speed = span * per_second / (len(rows) - 1) if span > 0 else 1.0
    arrivals = replayed([row.arrival_seconds for row in rows], speed)
    return [
        Request(f"p-{number}-{index}", arrival, tuple(map(int, session.turns[0].prompt)), session.turns[0].max_tokens)
        for index, (arrival, session) in enumerate(zip(arrivals, sessions, strict=True))
    ]


def _write(options: argparse.Namespace, capacity: float, reports: Sequence[LoadReport]) -> None:
    lengths, replayed_as = ("length_factor", "max_context_tokens"), ("count", "seed", "loads", "time_scale")
    names = ("dataset", *lengths, *replayed_as, "engines", "cards")
    settings = {name: getattr(options, name) for name in names} | {"path": options.path.name}
    head = {"format": FORMAT, "machine": describe_machine(), "settings": settings, "capacity_per_second": capacity}
    identical = {term: [values.p10, values.p50, values.p90] for term, values in reports[0].identical.items()}
    write_results(options.out, {**head, "identical": identical, "loads": [each.document() for each in reports]})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench prediction", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model folder; default: the demo model")
    parser.add_argument("--dataset", choices=tuple(_READERS), default="azure", help="kind of trace (%(default)s)")
    parser.add_argument("--path", type=existing_file, required=True, help="file of the trace")
    parser.add_argument("--length-factor", type=positive, help="on all lengths (azure 1, mooncake 0.1)")
    parser.add_argument("--max-context-tokens", type=at_least(2), default=6000, help="leave longer out (%(default)s)")
    parser.add_argument("--count", type=at_least(2), default=200, help="requests of a load (%(default)s)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="of the prompts (%(default)s)")
    parser.add_argument(
        "--loads", type=list_of(positive), default=[0.3, 0.6, 0.9, 1.5], help="of capacity (0.3,0.6,0.9,1.5)"
    )
    parser.add_argument("--time-scale", type=positive, default=16.0, help="how much slower mocks are (%(default)s)")
    parser.add_argument(
        "--engines",
        type=engine_pair,
        default=("mock", "mock"),
        help="a real pair in place of the mocks, e.g. torch,mlx",
    )
    parser.add_argument("--cards", action="store_true", help="a host with a network card for each mock; needs root")
    parser.add_argument("--out", type=Path, help="JSON with all samples")
    return parser


if __name__ == "__main__":
    sys.exit(main())
