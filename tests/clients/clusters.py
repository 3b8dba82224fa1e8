"""What is served while clients run: one cluster at a time, started when the first client asks for it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from baton.demo import checkpoint_dir
from system.clients.tool_checkpoint import tool_checkpoint
from system.cluster import Cluster
from system.plan import EngineName
from tests.clients.agents import write_agent_model
from tests.clients.secured_gateway import secured_gateway


class Served(NamedTuple):
    """A cluster that runs."""

    cluster: Cluster
    model_dir: Path
    """The checkpoint, with its tokenizer."""
    beside: Callable[[Cluster], AbstractContextManager[Mapping[str, str]]] | None = None
    """Starts what clients need beside the cluster, and tells them of it by variables."""
    variables: Mapping[str, str] = {}
    """What it told."""


class Clusters:
    """Starts clusters by name; asking for another one stops the former."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._name = ""
        self._served: Served | None = None

    def get(self, name: str) -> Served:
        """Return the cluster of a name of `CLUSTERS`, started if it does not run."""
        if name != self._name or self._served is None:
            self.close()
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-clients-")))
            made = CLUSTERS[name](folder)
            cluster = self._stack.enter_context(made.cluster)
            variables = self._stack.enter_context(made.beside(cluster)) if made.beside else {}
            self._served = made._replace(cluster=cluster, variables=variables)
            self._name = name
        return self._served

    def close(self) -> None:
        """Stop what runs."""
        self._served = None
        self._stack.close()


def _decode_engine() -> EngineName:
    return "mlx" if importlib.util.find_spec("mlx_lm") is not None else "torch"


def _demo(_: Path) -> Served:
    """The demo, its parts pinned."""
    return Served(Cluster(checkpoint_dir(), prefill=("torch",), decode=(_decode_engine(),)), checkpoint_dir())


def _tools(folder: Path) -> Served:
    """The demo with a template that knows tools."""
    model_dir = tool_checkpoint(folder / "model")
    return Served(Cluster(model_dir, prefill=("torch",), decode=(_decode_engine(),)), model_dir)


def _agents(folder: Path) -> Served:
    """A model that agents work with, and room for their prompts."""
    model_dir = write_agent_model(folder)
    nodes = {"num_blocks": "4096"}
    cluster = Cluster(
        model_dir, prefill=("torch",), decode=(_decode_engine(),), settings={"prefill": nodes, "decode": nodes}
    )
    return Served(cluster, model_dir)


def _grpc(folder: Path) -> Served:
    """The demo that knows tools, and beside its gateway one that asks for TLS and a key."""
    return _tools(folder)._replace(beside=partial(secured_gateway, folder))


CLUSTERS: Mapping[str, Callable[[Path], Served]] = {"demo": _demo, "tools": _tools, "grpc": _grpc, "agents": _agents}
"""By name; each takes a folder for what it writes, and returns a cluster that is not started yet."""
