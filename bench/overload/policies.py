"""What is compared: ways to deal with more than can be done, as settings of router and gateway."""

from __future__ import annotations

import tempfile
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client.metrics import ServiceLevel
from bench.load.deployment import Pair
from bench.local_cluster import Endpoints, running_cluster

KEYS = {"a": "sk-bench-a", "b": "sk-bench-b"}
"""API keys by tenant."""
_THRESHOLD = "threshold-"


@dataclass(frozen=True, slots=True)
class Policy:
    """One way."""

    name: str
    environment: Mapping[str, str]
    """Settings besides those of the objectives."""


def policy(name: str) -> Policy:
    """Return the policy of a name.

    Raises:
        ArgumentTypeError: If it is none.
    """
    if name in ("queue", "shed", "degrade"):
        return Policy(name, {"BATON_ROUTER_OVERLOAD_POLICY": name})
    if name == "round-robin":
        return Policy(name, {"BATON_ROUTER_PREFILL_POLICY": name})
    count = name.removeprefix(_THRESHOLD)
    if name.startswith(_THRESHOLD) and count.isdecimal() and int(count) > 0:
        return Policy(name, {"BATON_GATEWAY_MAX_CONCURRENT_REQUESTS": count})
    raise ArgumentTypeError(f"{name!r} is not queue, shed, degrade, round-robin or threshold-N")


@contextmanager
def running(how: Policy, pair: Pair, model: Path, level: ServiceLevel | None) -> Iterator[Endpoints]:
    """Run a pair of nodes under a policy, whose objectives are those by which it is measured."""
    environment = dict(how.environment)
    if level is not None:
        environment["BATON_ROUTER_SLO_TTFT_SECONDS"] = f"{level.ttft_seconds:g}"
        environment["BATON_ROUTER_SLO_TPOT_SECONDS"] = f"{level.tpot_seconds:g}"
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        keys = Path(folder, "keys")
        keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()), encoding="utf-8")
        environment["BATON_GATEWAY_API_KEYS_FILE"] = str(keys)
        with running_cluster(model, pair.tables, environment) as endpoints:
            yield endpoints
