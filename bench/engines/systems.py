"""The engines that `engine` compares: Baton whole, and others as child processes that answer line by line."""

from __future__ import annotations

import asyncio
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from bench.client.completion import COMPLETIONS_PATH, Sampling
from bench.client.http_client import HttpClient
from bench.client.load import LoadSettings, run_load
from bench.engines.case import Case, prompts_of
from bench.local_cluster import running_node
from bench.processes import Child
from bench.workloads.dataset import Session, Turn

_CLOCK_OF_PROCESS = 2
"""CPUCLOCK_SCHED, what clock_getcpuclockid(3) puts beside the inverted id of a process."""


class System(ABC):
    """An engine under measurement."""

    @abstractmethod
    def measure(self, case: Case, seed: int) -> float:
        """Return the CPU seconds that the counted tokens of a case took.

        Raises:
            RuntimeError: If it could not do it.
        """


class Baton(System):
    """A decode node behind router and gateway. What counts is all CPU time of the node's process.

    Decoding is what a run costs beyond the same prompts with one token of output, both from the prefix cache.
    """

    def __init__(self, url: str, process: psutil.Process) -> None:
        self._client = HttpClient(url)
        self._process = process
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._runner.close()

    def measure(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case."""
        if not case.is_decoding:
            return self._cost(case, seed, 1)
        self._run(case, seed, 1)  # leaves the prompts in the cache, if they are not there
        first = self._cost(case, seed, 1)
        return self._cost(case, seed, case.num_output_tokens) - first

    def _cost(self, case: Case, seed: int, num_tokens: int) -> float:
        started = cpu_seconds_of(self._process)
        self._run(case, seed, num_tokens)
        return cpu_seconds_of(self._process) - started

    def _run(self, case: Case, seed: int, num_tokens: int) -> None:
        prompts = prompts_of(case, seed)
        rounds = [prompts] if case.is_decoding else [[prompt] for prompt in prompts]
        for together in rounds:
            sessions = [Session((Turn(tuple(prompt), num_tokens),)) for prompt in together]
            settings = LoadSettings(COMPLETIONS_PATH, Sampling("model"))
            samples = self._runner.run(run_load(self._client, sessions, [0.0] * len(sessions), settings))
            failed = [sample.error for sample in samples if not sample.is_ok]
            if failed:
                raise RuntimeError(f"{len(failed)} of {len(samples)} requests failed: {failed[0]}")


class OtherEngine(System):
    """Another engine, in a child process that tells once it is ready."""

    def __init__(self, child: Child) -> None:
        self._child = child
        child.answer()

    def measure(self, case: Case, seed: int) -> float:
        """Return the CPU seconds of a case, as the child measured them."""
        return float(self._child.ask({"case": case.name, "seed": seed})["cpu_seconds"])


def cpu_seconds_of(process: psutil.Process) -> float:
    """Return the CPU time of a process, of all threads that it has had: to the nanosecond on Linux."""
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | _CLOCK_OF_PROCESS)
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def running_baton(model: Path, dtype: str, *, num_blocks: int, max_batch_size: int) -> Iterator[Baton]:
    """Run Baton with one decode node of one thread."""
    settings: dict[str, str | int | bool] = {"engine": "torch", "dtype": dtype, "num_threads": 1}
    settings |= {"num_blocks": num_blocks, "max_batch_size": max_batch_size}
    with running_node(model, settings) as url, closing(_baton_at(url)) as baton:
        yield baton


def _baton_at(url: str) -> Baton:
    port = url.rpartition(":")[2]
    for process in psutil.process_iter(["cmdline"]):
        if port in (process.info["cmdline"] or []) and "up" in process.info["cmdline"]:
            nodes = [child for child in process.children(recursive=True) if "decode" in child.cmdline()]
            if len(nodes) == 1:
                return Baton(url, nodes[0])
    raise RuntimeError(f"the decode node of {url} was not found among the processes")
