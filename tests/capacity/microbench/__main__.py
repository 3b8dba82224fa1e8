"""What a decision costs the router's thread, by nodes; the tests beside it assert that it is the reference's.

Run as `baton bench placement --nodes 2 16 64 128 1000 --out bench/results/placement.json`.
bench/METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from baton.rpc.process import freeze_loaded_objects
from bench.results_file import describe_machine, write_results
from capacity.microbench.loaded_router import LoadedRouter

FORMAT = "baton-bench-placement/1"
NUM_WARM_UP = 200
"""Decisions before the first that counts: placements in flight, links and formats are known by then."""
NUM_BY_REFERENCE = 10
"""Dry runs, which price every candidate by the reference and list it."""
MAX_BY_REFERENCE = 128
"""Nodes up to which those are timed."""


class Row(NamedTuple):
    """One cluster."""

    num_nodes: int
    cluster: str
    """"unlike, loaded" or "equal, idle"."""
    decision_seconds: list[float]
    """CPU time of the thread, one per decision."""
    report_seconds: list[float]
    """The same of the load reports between them."""
    reference_seconds: list[float]
    """The same of dry runs."""


def measure(num_nodes: int, num_decisions: int, *, seed: int = 0, is_alike: bool = False) -> Row:
    """Return what decisions cost among so many nodes."""
    router = LoadedRouter(num_nodes, seed=seed, is_alike=is_alike)
    router.run(NUM_WARM_UP)
    timing = router.run(num_decisions)
    num_by_reference = NUM_BY_REFERENCE if num_nodes <= MAX_BY_REFERENCE else 0
    reference = [router.decide(router.request(is_dry_run=True)) for _ in range(num_by_reference)]
    cluster = "equal, idle" if is_alike else "unlike, loaded"
    return Row(num_nodes, cluster, timing.decisions, timing.reports, reference)


def table_of(rows: Sequence[Row]) -> Table:
    """Return a line per cluster."""
    table = Table(
        "nodes", "cluster", "p50 ms", "p99 ms", "mean ms", "report ms", "by the reference ms", title="decisions"
    )
    for row in rows:
        reference = f"{1000 * statistics.median(row.reference_seconds):.2f}" if row.reference_seconds else ""
        table.add_row(
            str(row.num_nodes),
            row.cluster,
            f"{1000 * statistics.median(row.decision_seconds):.3f}",
            f"{1000 * np.percentile(row.decision_seconds, 99):.3f}",
            f"{1000 * statistics.mean(row.decision_seconds):.3f}",
            f"{1000 * statistics.mean(row.report_seconds):.4f}" if row.report_seconds else "",
            reference,
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the file."""
    parser = argparse.ArgumentParser(prog="baton bench placement", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 16, 64, 128, 1000])
    parser.add_argument("--decisions", type=int, default=1000, help="per cluster")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = [
        measure(num_nodes, options.decisions, seed=options.seed, is_alike=is_alike)
        for is_alike in (False, True)
        for num_nodes in options.nodes
    ]
    Console(width=110).print(table_of(rows))
    if options.out:
        nodes = " ".join(map(str, options.nodes))
        command = f"PYTHONPATH=tests python -m capacity.microbench --nodes {nodes} --decisions {options.decisions}"
        head: dict[str, object] = {"format": FORMAT, "machine": describe_machine(), "command": command}
        write_results(options.out, head | {"seed": options.seed, "rows": [_rounded(row) for row in rows]})
    return 0


def _rounded(row: Row) -> dict[str, object]:
    """Return a row for the file: times to the tenth of a microsecond."""
    return {
        name: [round(each, 7) for each in value] if isinstance(value, list) else value
        for name, value in row._asdict().items()
    }


if __name__ == "__main__":
    freeze_loaded_objects()  # as the router does when it has started
    sys.exit(main())
