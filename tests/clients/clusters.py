"""What is served while clients run: one cluster at a time, started when the first client asks for it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from baton.demo import checkpoint_dir
from system.clients.tool_checkpoint import tool_checkpoint
from system.cluster import Cluster
from system.plan import EngineName
from tests.clients.agents import write_agent_model


class Served(NamedTuple):
    """A cluster that runs."""

    cluster: Cluster
    model_dir: Path
    """The checkpoint, with its tokenizer."""


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
            self._served = Served(self._stack.enter_context(made.cluster), made.model_dir)
            self._name = name
        return self._served

    def close(self) -> None:
        """Stop what runs."""
        self._served = None
        self._stack.close()


def _decode_engine() -> EngineName:
    return "mlx" if importlib.util.find_spec("mlx_lm") is not None else "torch"


def _demo(_: Path) -> Served:
    """The demo, as `baton up` runs it."""
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


CLUSTERS: Mapping[str, Callable[[Path], Served]] = {"demo": _demo, "tools": _tools, "agents": _agents}
"""By name; each takes a folder for what it writes, and returns a cluster that is not started yet."""
