"""More than two nodes can do: goodput under objectives by policy, beside fixed thresholds, queueing and turns.

Run as `baton bench overload --out bench/results/overload.json`. Capacity and objectives are found first, on a cluster
that queues; then every policy has a cluster of its own and every load in turn, the same arrivals for all; at last one
tenant floods another. With `--side-by-side` all policies have a load at the same time, which is as many times shorter;
their nodes have to be slower for it (`--mock-time-scale`). METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from bench.client.metrics import ServiceLevel
from bench.host_cpu import HostCpu
from bench.load.deployment import Pair, read_facts
from bench.local_cluster import DEMO_MODEL, Endpoints
from bench.options import at_least, list_of, positive
from bench.overload.drive import Policy, Question, drive, policy, running, saturate
from bench.overload.row import HEAD, MAX_TTFT_RATIO, Row, faults, line, quantile
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-overload/1"
_POLICIES = "queue,round-robin,threshold-8,threshold-32,degrade,shed"
_NUM_CLIENTS = (12, 24, 48)
"""Of the steps by which capacity is found: few leave nodes idle, many fill their batches."""
_PAUSE_SECONDS = 3.0
"""Between two loads: what was abandoned leaves the nodes."""
_FAIR_LOAD, _FLOOD, _OTHER_LOAD = 0.5, 5.0, 0.4
"""Over the capacity: a tenant's share beside another, ten times that, and what the other asks for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows, write the files; 1 if shedding is not as good as it shall be."""
    options = _parser().parse_args(arguments)
    pair = Pair("disaggregated", ("mock", "mock"), options.mock_time_scale)
    question = Question(options.prompt_tokens, options.output_tokens)
    capacity, level = _calibrate(pair, question, options)
    plan = Plan(pair, question, level, options)
    print(HEAD, flush=True)
    rows: list[Row] = []
    loads = [Load(load, f"{load}", dict.fromkeys("ab", load * capacity / 2)) for load in options.loads]
    groups = [options.policies] if options.side_by_side else [[each] for each in options.policies]
    for group in groups:
        for row in _rows(plan, [(how, loads) for how in group]):
            rows.append(row)
            print(line(row, max(row.goodput for row in rows) or 1.0), flush=True)
            _write(options, rows, capacity, level)
    found = faults(rows, "shed")
    if options.fairness:
        found += _measure_fairness(plan, capacity)
    for fault in found:
        print(fault)
    return 1 if found else 0


def _calibrate(pair: Pair, question: Question, options: argparse.Namespace) -> tuple[float, ServiceLevel]:
    """Return what the pair can do, requests/s, and the objectives; raise SystemExit if nothing is complete in time."""
    with running(policy("queue"), pair, options.model, None) as endpoints:
        facts = read_facts(endpoints.router)
        seconds = options.calibration_seconds * pair.time_scale
        alone = asyncio.run(saturate(endpoints, question, 1, seconds / 4, "alone")).samples
        capacity = max(_rate(endpoints, question, count, seconds) for count in _NUM_CLIENTS)
    formula = 1 / facts.prefiller.prefill_seconds(question.num_prompt_tokens)
    if not capacity:
        enough = 1 + 2 * max(_NUM_CLIENTS) // (formula * pair.time_scale)
        told = f"nothing was complete in time, {seconds:g} s, of what {max(_NUM_CLIENTS)} clients asked"
        raise SystemExit(f"{told}; the nodes compute {formula:.2f} prompts/s: give --calibration-seconds {enough:g}")
    ttft = quantile((each.ttft_seconds for each in alone), 0.5) or 0.0
    tpot = quantile((each.tpot_seconds for each in alone), 0.5) or 0.0
    level = ServiceLevel(options.slo_ttft or 6 * ttft, options.slo_tpot or 3 * tpot)
    print(
        f"alone TTFT {ttft:.3f} s, TPOT {1000 * tpot:.1f} ms; capacity {capacity:.2f}/s (its prefill node by formula "
        f"{formula:.2f}/s)\n"
        f"good within TTFT {level.ttft_seconds:.3f} s and TPOT {1000 * (level.tpot_seconds or 0):.1f} ms"
    )
    return capacity, level


def _rate(endpoints: Endpoints, question: Question, num_clients: int, seconds: float) -> float:
    """Return what comes back per second to clients that ask without a pause, after the first quarter of the time."""
    samples = asyncio.run(saturate(endpoints, question, num_clients, seconds, f"capacity/{num_clients}")).samples
    ends = [each.sent_seconds + each.seconds for each in samples if each.end == "complete"]
    return sum(seconds / 4 <= end <= seconds for end in ends) / (0.75 * seconds)


class Load(NamedTuple):
    """What is asked for."""

    load: float
    """Requests per second over the capacity."""
    seed: str
    """Of arrivals and prompts: loads of the same one have the same, as far as their rates are the same."""
    rates: Mapping[str, float]
    """Requests per second by tenant."""


class Plan(NamedTuple):
    """What all rows have in common."""

    pair: Pair
    question: Question
    level: ServiceLevel
    options: argparse.Namespace

    def measure(self, endpoints: Endpoints, how: Policy, load: Load) -> Row:
        """Return the row of a load."""
        level, question, seconds = self.level, self.question, self.options.seconds
        grace = (level.ttft_seconds or 0.0) + (level.tpot_seconds or 0.0) * question.num_output_tokens
        cpu, seed = HostCpu(), f"{self.options.seed}/{load.seed}"
        done = asyncio.run(drive(endpoints, question, load.rates, seconds, seed, grace))
        row = Row(how.name, load.load, seconds, level, cpu.share(), done)
        asyncio.run(asyncio.sleep(_PAUSE_SECONDS))
        return row


def _rows(plan: Plan, clusters: Sequence[tuple[Policy, Sequence[Load]]]) -> Iterator[Row]:
    """Yield the rows of loads that clusters, each under its policy, have in turn and at the same time."""
    with ExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(len(clusters)))
        running_ones = [
            stack.enter_context(running(how, plan.pair, plan.options.model, plan.level)) for how, _ in clusters
        ]
        for loads in zip(*(loads for _, loads in clusters), strict=True):
            yield from executor.map(plan.measure, running_ones, (how for how, _ in clusters), loads)


def _measure_fairness(plan: Plan, capacity: float) -> list[str]:
    """Let one tenant ask for its share, then for ten times as much, beside another; return what is not fair.

    The policies that this is done under have their clusters at the same time; so do both loads with `--side-by-side`.
    """
    options, other_rate = plan.options, _OTHER_LOAD * capacity
    loads = [
        Load(load + _OTHER_LOAD, "fairness", {"a": load * capacity, "b": other_rate}) for load in (_FAIR_LOAD, _FLOOD)
    ]
    apart = [[load] for load in loads] if options.side_by_side else [loads]
    rows = list(_rows(plan, [(how, each) for how in options.fairness for each in apart]))
    found, ratios = list[str](), dict[str, float]()
    for how in options.fairness:
        fair, flooded = pair = [row for row in rows if row.policy == how.name]
        before, after = (row.ttft_seconds("b", 0.99) or 0.0 for row in pair)
        refused = [sum(each.tenant == "b" and each.end == "refused" for each in row.drive.samples) for row in pair]
        ratio = ratios[how.name] = after / before if before else 0.0
        print(
            f"{how.name}: b at {_OTHER_LOAD:g} of the capacity: TTFT p99 {before:.3f} s beside a at {_FAIR_LOAD:g}, "
            f"{after:.3f} s beside a at {_FLOOD:g}: {ratio:.2f} times; refused {refused[0]} and {refused[1]}; "
            f"CPU {100 * fair.host_cpu_share:.0f} % and {100 * flooded.host_cpu_share:.0f} %"
        )
        if ratio > MAX_TTFT_RATIO:
            found.append(f"fairness: under {how.name} TTFT p99 of b is {ratio:.2f} times as long beside a flood")
    if options.out:
        path = options.out.with_name(f"{options.out.stem}_fairness.json")
        head = {"format": FORMAT, "machine": describe_machine(), "command": sys.argv, "ttft_p99_ratio": ratios}
        write_results(path, {**head, "rows": [row.document() for row in rows]})
    return found


def _write(options: argparse.Namespace, rows: Sequence[Row], capacity: float, level: ServiceLevel) -> None:
    if options.out is None:
        return
    kept = ("loads", "seconds", "seed", "prompt_tokens", "output_tokens", "mock_time_scale")
    settings = {name: getattr(options, name) for name in kept} | {"policies": [each.name for each in options.policies]}
    found = {"capacity_per_second": capacity, "service_level": asdict(level)}
    head = {"format": FORMAT, "machine": describe_machine(), "settings": settings}
    write_results(options.out, {**head, **found, "rows": [row.document() for row in rows]})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench overload", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model folder; default: the demo model")
    parser.add_argument("--policies", type=list_of(policy), default=_POLICIES, help=f"({_POLICIES})")
    parser.add_argument(
        "--loads", type=list_of(positive), default=[0.5, 0.8, 1.0, 2.0, 4.0], help="over capacity (0.5,0.8,1,2,4)"
    )
    parser.add_argument("--seconds", type=positive, default=300.0, help="of each load (%(default)s)")
    parser.add_argument(
        "--calibration-seconds",
        type=positive,
        default=60.0,
        help="of each of three steps to find capacity, in the nodes' time (%(default)s)",
    )
    parser.add_argument("--slo-ttft", type=positive, help="good within, seconds; default: 6 times what it is alone")
    parser.add_argument("--slo-tpot", type=positive, help="good within, seconds; default: 3 times what it is alone")
    parser.add_argument("--prompt-tokens", type=at_least(1), default=2000, help="of each request (%(default)s)")
    parser.add_argument("--output-tokens", type=at_least(2), default=32, help="of each request (%(default)s)")
    parser.add_argument("--mock-time-scale", type=positive, default=1.0, help="how many times slower the nodes are")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals and prompts (%(default)s)")
    parser.add_argument(
        "--side-by-side",
        action="store_true",
        help="all policies at once, on nodes of their own; the flood beside its like",
    )
    parser.add_argument(
        "--fairness",
        type=lambda text: list_of(policy)(text) if text else [],
        default="queue,shed",
        help="policies of one tenant's flood (%(default)s)",
    )
    parser.add_argument("--out", type=Path, help="JSON with all samples")
    return parser


if __name__ == "__main__":
    sys.exit(main())
