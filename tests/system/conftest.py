"""Fixtures of the tests that need a whole Baton of real processes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.demo import checkpoint_dir
from checkpoints import checkpoint
from system.bystander import Bystander
from system.cluster import Cluster

_NODE = Path(__file__).parent / "node"
_INSTALL_SECONDS = 300


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the clients for Node and their packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    for source in _NODE.iterdir():
        if source.is_file():
            shutil.copy(source, folder)
    command = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    try:
        installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm does not install the clients' packages within {_INSTALL_SECONDS} s")
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install the clients' packages: {installed.stderr.strip()[-300:]}")
    return folder


@pytest.fixture(scope="session")
def demo_cluster() -> Iterator[Cluster]:
    """Run the demo model with pinned parts: torch prefills, MLX decodes where it is installed.

    Nothing that clients do may end a process, keep a request running, or make a process write a traceback.
    """
    has_mlx = importlib.util.find_spec("mlx_lm") is not None
    with Cluster(checkpoint_dir(), prefill=("torch",), decode=("mlx" if has_mlx else "torch",)) as cluster:
        yield cluster
        cluster.wait_until(lambda: _is_idle(cluster), "no request is left on any node")
        logs = {name: log.read_text(errors="replace") for name, log in cluster.log_files.items()}
        assert {name: log for name, log in logs.items() if "Traceback" in log} == {}


@pytest.fixture(scope="session")
def llama_cluster() -> Iterator[Cluster]:
    """Run torch prefill and MLX decode on the tiny checkpoint in float32, with adapters, and few blocks for a crowd."""
    from adapters import adapter_folder  # imports torch and PEFT

    nodes = {"lora": ",".join(f"{name}={adapter_folder('llama', seed)}" for name, seed in (("one", 1), ("two", 2)))}
    decode = nodes | {"num_blocks": "768"}
    settings = {"router": {"prefill_policy": "remote"}, "prefill": nodes, "decode": decode}
    with Cluster(checkpoint("llama"), prefill=("torch",), decode=("mlx",), settings=settings) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def exact_cluster() -> Iterator[Cluster]:
    """Run MLX prefill, and a decode node of each engine, on the tiny checkpoint in float32."""
    settings = {"router": {"prefill_policy": "remote"}}
    with Cluster(checkpoint("llama"), prefill=("mlx",), decode=("mlx", "torch"), settings=settings) as cluster:
        yield cluster


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
