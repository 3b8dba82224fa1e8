"""The processes whose cost is measured: Baton with a mock engine of a fixed step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.local_cluster import NodeTable, registered_nodes, running_cluster, services_of

MAX_STREAMS = 512
"""Requests that each engine computes at once."""
_BLOCK_TOKENS = 16
_NUM_BLOCKS = 16384


class Stack(NamedTuple):
    """Processes that serve MODEL."""

    http_port: int
    """Of the OpenAI API."""
    processes: Mapping[str, psutil.Process]
    """By what they do: gateway, router, decode."""
    decode_port: int
    """Of the decode node's gRPC API."""

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each process so far, and under "NAME/main" that of its first thread."""
        times: dict[str, float] = {}
        for name, process in self.processes.items():
            first = next(thread for thread in process.threads() if thread.id == process.pid)
            own = process.cpu_times()
            times |= {name: own.user + own.system, f"{name}/main": first.user_time + first.system_time}
        return times


@contextmanager
def baton_stack(model: Path, step_seconds: float) -> Iterator[Stack]:
    """Run gateway, router, cache index and one decode node as long as the context lasts.

    Args:
        model: Folder of the model.
        step_seconds: Time of every step of the engine; 0: none.
    """
    sizes = {"max_batch_size": MAX_STREAMS, "num_blocks": _NUM_BLOCKS, "block_tokens": _BLOCK_TOKENS}
    node: NodeTable = {
        "role": "decode",
        "engine": "mock",
        "mock_step_seconds": step_seconds,
        "max_step_tokens": 8192,
        **sizes,
    }
    with running_cluster(model, [node], {"OMP_NUM_THREADS": "1", "BATON_LOG_LEVEL": "warning"}) as endpoints:
        (state,) = registered_nodes(endpoints.router, 1)
        ports = [int(address.rpartition(":")[2]) for address in (endpoints.url, state.node.address)]
        yield Stack(ports[0], services_of(endpoints.process_id), ports[1])
