"""The servers whose cost is measured: Baton, and ai-dynamo, each with a mock engine of a fixed step time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.local_cluster import MODEL, NodeTable, registered_nodes, running_cluster, services_of
from bench.processes import chat_request, free_port, running_server, wait_until_served

MAX_STREAMS = 512
"""Requests that each engine computes at once."""
_BLOCK_TOKENS = 16
_NUM_BLOCKS = 16384


class Stack(NamedTuple):
    """Processes that serve MODEL."""

    name: str
    """In results."""
    http_port: int
    """Of the OpenAI API."""
    processes: Mapping[str, psutil.Process]
    """By what they do: gateway, router, decode."""
    decode_port: int = 0
    """Of the decode node's gRPC API; 0: it has none."""

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
        yield Stack("baton", ports[0], services_of(endpoints.process_id), ports[1])


@contextmanager
def dynamo_stack(python: Path, model: Path, step_seconds: float, logs: Path) -> Iterator[Stack]:
    """Run ai-dynamo's frontend with its router inside, and its mocker; discovery by files, events by ZeroMQ.

    Args:
        python: Interpreter of the virtual environment in which ai-dynamo is installed.
        model: Folder of the model.
        step_seconds: Time of every decode step of the mocker; 0: no time passes in it.
        logs: Folder for logs.
    """
    environment = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(logs / "dynamo-discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "warn",
        "HF_HUB_OFFLINE": "1",
    }
    port, log = free_port(), logs / "dynamo-decode.log"
    frontend = ("dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode", "kv")
    mocker = (
        "dynamo.mocker", "--model-path", str(model), "--model-name", MODEL, "--num-gpu-blocks-override",
        str(_NUM_BLOCKS), "--block-size", str(_BLOCK_TOKENS), "--max-num-seqs", str(MAX_STREAMS),
        "--max-num-batched-tokens", "8192", *_timing(step_seconds, logs),
    )  # fmt: skip
    module, gateway_log = [str(python), "-m"], logs / "dynamo-gateway.log"
    with (
        running_server([*module, *frontend], gateway_log, environment, folder=logs) as gateway,
        running_server([*module, *mocker], log, environment, folder=logs) as decode,
    ):
        wait_until_served(decode, chat_request(f"http://127.0.0.1:{port}", MODEL), log, "dynamo's mocker")
        yield Stack("dynamo", port, {"gateway": psutil.Process(gateway.pid), "decode": psutil.Process(decode.pid)})


def _timing(step_seconds: float, logs: Path) -> Sequence[str]:
    """Return flags for steps of a fixed time: the mocker interpolates in a table, which is flat here."""
    if step_seconds == 0:
        return ("--speedup-ratio", "0")
    import numpy as np

    milliseconds = step_seconds * 1000
    table = logs / "dynamo-timing.npz"
    ends = [1.0, 1e6]
    np.savez(
        table,
        prefill_isl=ends,
        prefill_ttft_ms=[milliseconds] * 2,
        decode_active_kv_tokens=ends,
        decode_context_length=ends,
        decode_itl=[[milliseconds] * 2] * 2,
    )
    return ("--planner-profile-data", str(table))
