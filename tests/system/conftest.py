"""Fixtures of the tests that need a whole Baton of real processes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from baton.demo import checkpoint_dir
from system.bystander import Bystander
from system.cluster import Cluster


@pytest.fixture(scope="session")
def demo_cluster() -> Iterator[Cluster]:
    """Run the demo model as `baton up` does: torch prefills, MLX decodes where it is installed.

    Nothing that clients do may end a process, keep a request running, or make a process write a traceback.
    """
    has_mlx = importlib.util.find_spec("mlx_lm") is not None
    with Cluster(checkpoint_dir(), prefill=("torch",), decode=("mlx" if has_mlx else "torch",)) as cluster:
        yield cluster
        cluster.wait_until(lambda: _is_idle(cluster), "no request is left on any node", 10)
        logs = {name: log.read_text(errors="replace") for name, log in cluster.log_files.items()}
        assert {name: log for name, log in logs.items() if "Traceback" in log} == {}


@pytest.fixture(scope="module")
def bystander(demo_cluster: Cluster) -> Iterator[Bystander]:
    """Generate beside a module's tests without a pause; every output must come whole, and as if it were alone."""
    with Bystander(demo_cluster) as bystander:
        yield bystander


def _is_idle(cluster: Cluster) -> bool:
    states = cluster.nodes().values()
    return bool(states) and all(
        state.load.running_request_count == state.load.waiting_request_count == 0 for state in states
    )
