"""Runs a pair of nodes under a policy, sends it requests of several tenants at their times, and watches its memory."""

from __future__ import annotations

import asyncio
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate, count, takewhile
from pathlib import Path
from random import Random
from typing import Literal

import psutil

from bench.client.completion import COMPLETIONS_PATH, Answer, Sampling, clock_from_now, stream_answer
from bench.client.http_client import HttpClient, HttpError
from bench.client.metrics import ServiceLevel
from bench.load.deployment import Pair
from bench.local_cluster import Endpoints, running_cluster, services_of

KEYS = {"a": "sk-bench-a", "b": "sk-bench-b"}
"""API keys by tenant."""
HEADERS = {tenant: {"Authorization": f"Bearer {key}"} for tenant, key in KEYS.items()}


@dataclass(frozen=True, slots=True)
class Policy:
    """One way."""

    name: str
    environment: Mapping[str, str]
    """Settings besides those of the objectives."""


def policy(name: str) -> Policy:
    """Return the policy of a name; raise ArgumentTypeError if it is none."""
    if name in ("queue", "shed", "degrade"):
        return Policy(name, {"BATON_ROUTER_OVERLOAD_POLICY": name})
    if name == "round-robin":
        return Policy(name, {"BATON_ROUTER_PREFILL_POLICY": name})
    count = name.removeprefix("threshold-")
    if count != name and count.isdecimal() and int(count) > 0:
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


End = Literal["complete", "refused", "failed", "abandoned"]
"""What became of a request: abandoned ones had no end when the run was over."""
_TOKEN_IDS = range(3, 250)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds from the beginning of its run."""

    tenant: str
    sent_seconds: float
    end: End
    seconds: float
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    num_output_tokens: int = 0
    is_degraded: bool = False
    """Whether the server says that it has cut the output."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory of the processes that must not grow."""

    seconds: float
    num_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Drive:
    """What came of a load."""

    samples: Sequence[Sample]
    memory: Sequence[MemorySample]


@dataclass(frozen=True, slots=True)
class Question:
    """What every request asks."""

    num_prompt_tokens: int
    num_output_tokens: int

    def body(self, random: Random) -> bytes:
        """Return a request whose prompt no other shares."""
        prompt = random.choices(_TOKEN_IDS, k=self.num_prompt_tokens)
        return Sampling("model").body(self.num_output_tokens, prompt=prompt)


async def drive(
    endpoints: Endpoints, question: Question, rates: Mapping[str, float], seconds: float, seed: str, grace: float
) -> Drive:
    """Send Poisson arrivals of each tenant for some seconds; return what came of all of them.

    `rates` are requests per second by tenant; no load repeats a prompt of another `seed`. For `grace` seconds after the
    load a request may still become a good one; what then has no end is abandoned.
    """
    clock = clock_from_now()
    arrivals = sorted((at, tenant) for tenant, rate in rates.items() for at in _poisson(rate, seconds, seed, tenant))
    clients = {tenant: HttpClient(endpoints.url, HEADERS[tenant]) for tenant in rates}
    watch = asyncio.create_task(_watch_memory(endpoints.process_id, seconds / 20, clock))
    tasks = set[asyncio.Task[Sample]]()
    try:
        for number, (at, tenant) in enumerate(arrivals):
            body = question.body(Random(f"{seed}/{sum(rates.values()):g}/{tenant}/{number}"))
            await asyncio.sleep(at - clock())
            tasks.add(asyncio.create_task(_ask(clients[tenant], tenant, body, clock)))
        await asyncio.sleep(seconds + grace - clock())
    finally:
        for task in (watch, *tasks):
            task.cancel()
        samples = await asyncio.gather(*tasks)
        memory = await watch
        for client in clients.values():
            client.close()
    return Drive(samples, memory)


async def saturate(endpoints: Endpoints, question: Question, num_clients: int, seconds: float, seed: str) -> Drive:
    """Let clients ask without a pause: what comes back is what can be done."""
    clock = clock_from_now()
    with closing(HttpClient(endpoints.url, HEADERS["a"])) as client:

        async def ask_on(number: int) -> list[Sample]:
            random, samples = Random(f"{seed}/{number}"), list[Sample]()
            while clock() < seconds:
                samples.append(await _ask(client, "a", question.body(random), clock))
            return samples

        found = await asyncio.gather(*(ask_on(number) for number in range(num_clients)))
    return Drive([sample for samples in found for sample in samples], [])


async def _ask(client: HttpClient, tenant: str, body: bytes, clock: Callable[[], float]) -> Sample:
    answer = Answer(sent_seconds=clock())
    end: End = "complete"
    try:
        await stream_answer(client, COMPLETIONS_PATH, body, clock, answer)
    except HttpError as error:
        end = "refused" if error.status == 429 else "failed"
    except (OSError, ValueError):
        end = "failed"
    except asyncio.CancelledError:
        end = "abandoned"
    times, num_tokens = answer.token_seconds, answer.num_output_tokens
    return Sample(
        tenant,
        answer.sent_seconds,
        end,
        clock() - answer.sent_seconds,
        ttft_seconds=times[0] - answer.sent_seconds if times else None,
        tpot_seconds=(times[-1] - times[0]) / (num_tokens - 1) if num_tokens > 1 and times else None,
        num_output_tokens=num_tokens,
        is_degraded=bool((answer.placement or {}).get("degraded_max_tokens")),
    )


async def _watch_memory(process_id: int, every_seconds: float, clock: Callable[[], float]) -> list[MemorySample]:
    """Return the resident memory of gateway and router over time, until it is cancelled."""
    found: list[MemorySample] = []
    with suppress(asyncio.CancelledError):
        while True:
            services, sizes = services_of(process_id), dict[str, int]()
            for name in services.keys() & {"gateway", "router"}:
                with suppress(psutil.Error):
                    sizes[name] = services[name].memory_info().rss
            found.append(MemorySample(clock(), sizes))
            await asyncio.sleep(every_seconds)
    return found


def _poisson(rate: float, seconds: float, seed: str, tenant: str) -> list[float]:
    random = Random(f"{seed}/{tenant}")
    return list(takewhile(lambda at: at < seconds, accumulate(random.expovariate(rate) for _ in count())))
