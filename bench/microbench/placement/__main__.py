"""Prints lines of JSON: what decisions cost a router's thread, by cluster, and how many differ from the reference's."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence

from baton.capacity.placement import place
from baton.capacity.search.placement_search import PlacementSearch, decides_alike
from bench.microbench.placement.loaded_router import LoadedRouter
from bench.microbench.placement.random_clusters import random_cluster
from bench.servers.placement import Equality, Row

NUM_WARM_UP = 200
"""Decisions before the first that counts: placements in flight, links and formats are known by then."""
NUM_BY_REFERENCE = 10
"""Dry runs, which price every candidate by the reference and list it."""
MAX_BY_REFERENCE = 128
"""Nodes up to which those are timed."""


def measure(num_nodes: int, num_decisions: int, *, seed: int = 0, is_alike: bool = False) -> Row:
    """Return what decisions cost among so many nodes."""
    router = LoadedRouter(num_nodes, seed=seed, is_alike=is_alike)
    router.run(NUM_WARM_UP)
    timing = router.run(num_decisions)
    num_by_reference = NUM_BY_REFERENCE if num_nodes <= MAX_BY_REFERENCE else 0
    reference = [router.decide(router.request(is_dry_run=True)) for _ in range(num_by_reference)]
    cluster = "equal, idle" if is_alike else "unlike, loaded"
    return Row(num_nodes, cluster, timing.decisions, timing.reports, reference)


def compare(num_clusters: int, first_seed: int = 0) -> Equality:
    """Return how the search's decisions on random clusters compare with the reference's."""
    kinds: Counter[str] = Counter()
    different = []
    for seed in range(first_seed, first_seed + num_clusters):
        snapshot, request, policy = random_cluster(random.Random(seed))
        expected = place(snapshot, request, policy=policy)
        choice = expected.choice
        kinds[
            "none" if choice is None else "pull" if choice.pull_node_id else "local" if choice.is_local else "remote"
        ] += 1
        if not decides_alike(PlacementSearch().place(snapshot, request, policy=policy), expected):
            different.append(seed)
    return Equality(num_clusters, len(different), different[0] if different else None, dict(kinds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(prog="python -m bench.microbench.placement", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[])
    parser.add_argument("--decisions", type=int, default=1000)
    parser.add_argument("--clusters", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for is_alike in (False, True):
        for num_nodes in options.nodes:
            row = measure(num_nodes, options.decisions, seed=options.seed, is_alike=is_alike)
            sys.stdout.write(json.dumps(row._asdict()) + "\n")
            sys.stdout.flush()
    if options.clusters:
        sys.stdout.write(json.dumps(compare(options.clusters, options.seed)._asdict()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
