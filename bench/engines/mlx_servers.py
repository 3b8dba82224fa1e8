"""Baton with one MLX node beside mlx_lm.server, HTTP to HTTP: the part of `baton bench mlx-decode` that asks servers.

Both run all the time, each with one thread of BLAS, and are asked in turn.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil

from bench.client.completion import COMPLETIONS_PATH, Sampling
from bench.client.http_client import HttpClient
from bench.client.load import LoadSettings, run_load
from bench.client.sample import RequestSample
from bench.engines.models import VOCABULARY_SIZE
from bench.local_cluster import running_node
from bench.processes import ONE_THREAD, free_port, running_server, wait_until_served
from bench.workloads.dataset import Session, Turn

BATON, MLX_LM_SERVER = "baton", "mlx_lm.server"
_NUM_BLOCKS = 1024
_MAX_BATCH_SIZE = 64
_LEAST_ID = 30_000
"""Words below begin with one that stands for itself, and would be split."""
_LEAST_STEP_SECONDS = 1e-4


class ServerCase(NamedTuple):
    """Requests to a server."""

    name: str
    size: int
    """Requests at once."""
    num_tokens: int
    """Of each output; with joins, of the longest."""
    num_joins: int
    """Requests that come, each when another one has left."""


SERVER_CASES = (
    ServerCase("d1", 1, 32, 0),
    ServerCase("d8", 8, 24, 0),
    ServerCase("d32", 32, 24, 0),
    ServerCase("joins", 8, 24, 12),
)
PROMPT_TOKENS = 16


class Server:
    """A server under measurement, and the processes that it consists of."""

    def __init__(self, name: str, url: str, model: str, process: psutil.Process) -> None:
        self.name = name
        self._client = HttpClient(url)
        self._model = model
        self._process = process
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._runner.close()

    def ask(self, case: ServerCase, seed: int) -> dict[str, Any]:
        """Return what a case took: CPU seconds of all processes, tokens, and when each token came.

        Raises:
            RuntimeError: If a request failed.
        """
        started = self._cpu_seconds()
        samples = self._runner.run(self._run(case, seed))
        failed = [sample.error for sample in samples if not sample.is_ok]
        if failed:
            raise RuntimeError(f"{self.name}: {len(failed)} of {len(samples)} requests failed: {failed[0]}")
        return {
            "cpu_seconds": round(self._cpu_seconds() - started, 3),
            "tokens": sum(sample.num_completion_tokens for sample in samples),
            "tokens_per_second": round(rate_of(samples), 2),
            "longest_gap": round(longest_gap(samples), 2),
        }

    async def _run(self, case: ServerCase, seed: int) -> list[RequestSample]:
        random = Random(f"{case.name}/{seed}")
        sessions = [Session((Turn(_prompt(random), length),)) for length in lengths_of(case)]
        sampling = Sampling(self._model, ignore_eos=False)
        settings = LoadSettings(COMPLETIONS_PATH, sampling, max_in_flight=case.size)
        return await run_load(self._client, sessions, [0.0] * len(sessions), settings)

    def _cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in (self._process, *self._process.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


def lengths_of(case: ServerCase) -> list[int]:
    """Return the tokens of each output; with joins the first ones end one after the other."""
    if not case.num_joins:
        return [case.num_tokens] * case.size
    staggered = [max(2, case.num_tokens * (index + 1) // case.size) for index in range(case.size)]
    return staggered + [case.num_tokens] * case.num_joins


def rate_of(samples: Sequence[RequestSample]) -> float:
    """Return tokens per second of wall clock, from the first request sent to the last token."""
    last = max(sample.token_seconds[-1] for sample in samples)
    return sum(sample.num_completion_tokens for sample in samples) / (
        last - min(sample.sent_seconds for sample in samples)
    )


def longest_gap(samples: Sequence[RequestSample]) -> float:
    """Return the longest time between two tokens of a request, in median times per output token."""
    step = statistics.median(sample.tpot_seconds or 0.0 for sample in samples)
    return max(gap for sample in samples for gap in sample.itl_seconds) / max(step, _LEAST_STEP_SECONDS)


def measure_servers(model: Path, num_rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a sample per round, case and server; a round before them warms up.

    Args:
        model: Folder of the model.
        num_rounds: That count.
    """
    with ExitStack() as stack:
        servers = [stack.enter_context(_running_baton(model)), stack.enter_context(_running_mlx_lm(model))]
        for case in SERVER_CASES:
            for server in servers:
                server.ask(case._replace(num_tokens=4, num_joins=0), 0)
        for number in range(1, num_rounds + 1):
            for case in SERVER_CASES:
                for server in servers[:: 1 if number % 2 else -1]:
                    yield {"case": case.name, "system": server.name, "round": number, **server.ask(case, number)}


@contextmanager
def _running_baton(model: Path) -> Iterator[Server]:
    settings: dict[str, str | int | bool] = {"engine": "mlx", "dtype": "float32", "num_threads": 1}
    settings |= {"num_blocks": _NUM_BLOCKS, "max_batch_size": _MAX_BATCH_SIZE}
    before = set(psutil.Process().children())
    with running_node(model, settings) as url:
        (process,) = set(psutil.Process().children()) - before
        with closing(Server(BATON, url, "model", process)) as server:
            yield server


@contextmanager
def _running_mlx_lm(model: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(model), "--port", str(port), "--temp", "0"]
    command += ["--decode-concurrency", str(_MAX_BATCH_SIZE), "--prompt-concurrency", "8"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with running_server(command, log, ONE_THREAD) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until_served(process, f"{url}/v1/models", log, MLX_LM_SERVER)
            with closing(Server(MLX_LM_SERVER, url, str(model), psutil.Process(process.pid))) as server:
                yield server


def _prompt(random: Random) -> str:
    return " ".join(f"t{random.randrange(_LEAST_ID, VOCABULARY_SIZE)}" for _ in range(PROMPT_TOKENS))
