"""Measures the loads of a table on one run of a pair's processes: first alone, then each load, every seed."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from random import Random
from threading import Barrier, BrokenBarrierError, Lock, Semaphore
from typing import NamedTuple

from bench.client.completion import COMPLETIONS_PATH, Sampling
from bench.client.http_client import HttpClient
from bench.client.load import LoadSettings, run_load
from bench.client.metrics import RequestSample
from bench.host_cpu import HostCpu
from bench.load.deployment import NodeFacts, Pair, read_facts, running_pair
from bench.load.row import Alone, Row
from bench.local_cluster import Endpoints
from bench.node_rates import Utilisation, pair_utilisation
from bench.options import say
from bench.workloads.dataset import Session, TokenIds, fixed_lengths
from bench.workloads.traces import poisson

_VOCABULARY = TokenIds(3, 250)
_NUM_ALONE = 5
_NUM_WARM_UP = 3
_WARM_UP_TOKENS = 4
_FULL_RATE = 6.0
"""The rate of `--rates` at which real engines, whose capacity is measured, are full."""


class Load(NamedTuple):
    """A load of the table."""

    rate: float
    """Requests per second of the nodes' time."""
    num_output_tokens: int


class Turns:
    """Pairs that run side by side start one after the other, are then measured alone, and then loaded.

    Invariant, kept by `measure_loads`: nobody is measured before all have started, nor loaded before all have been
    measured alone.
    """

    def __init__(self, num_pairs: int, num_loaded: int) -> None:
        self.alone = Lock()
        """Held by the pair that starts, which takes all of a small host, or is measured while no other is."""
        self.loaded = Semaphore(num_loaded)
        """Held by pairs that are loaded."""
        self._all = Barrier(num_pairs)

    def wait(self) -> None:
        """Wait until all pairs have come as far, or one has been given up."""
        with suppress(BrokenBarrierError):
            self._all.wait()

    def give_up(self) -> None:
        """Let nobody wait for this pair."""
        self._all.abort()


def measure_loads(
    pair: Pair, loads: Sequence[Load], options: argparse.Namespace, full: dict[int, float], turns: Turns
) -> Iterator[Row]:
    """Yield a row per load, on one run of the pair's processes.

    `full` has the most requests per second of real engines by output tokens, found once, so that all deployments have
    the same loads; what is missing is measured and put in.
    """
    with ExitStack() as stack:
        stack.callback(turns.give_up)
        with turns.alone:
            endpoints = stack.enter_context(running_pair(pair, options.model))
            facts = read_facts(endpoints.router)
        turns.wait()
        client = _Client(endpoints, options.prompt_tokens, pair.time_scale)
        with turns.alone:
            alone = {
                num_tokens: client.alone(f"0/{pair.time_scale}", num_tokens)
                for num_tokens in dict.fromkeys(load.num_output_tokens for load in loads)
            }
        planned = [_planned(load, pair, facts, alone[load.num_output_tokens], options, full) for load in loads]
        _print_utilisation(pair, facts, planned)
        turns.wait()
        stack.enter_context(turns.loaded)
        for number, plan in enumerate(planned, 1):
            yield _row(client, plan, pair, options, f"row {number} of {len(planned)}")


class _Planned(NamedTuple):
    """A load whose numbers by formula are known."""

    load: Load
    utilisation: Utilisation
    service_seconds: float
    alone: Alone
    growth: float
    """Of a decode step by a further sequence."""


def _planned(
    load: Load, pair: Pair, facts: NodeFacts, alone: Alone, options: argparse.Namespace, full: dict[int, float]
) -> _Planned:
    service_seconds, most = facts.prefiller.prefill_seconds(options.prompt_tokens), 0.0
    if "mock" not in pair.engines:
        # Two engines share this machine's cores: what is full first, prefill or cores, says what can be done.
        service_seconds = alone.ttft_seconds
        measured = 1 / max(service_seconds, alone.cpu_seconds / (os.cpu_count() or 1))
        most = full.setdefault(load.num_output_tokens, measured)
        load = Load(round(load.rate / _FULL_RATE * most, 3), load.num_output_tokens)
    per_second = load.rate / pair.time_scale
    link = pair.link_bytes_per_second or facts.link_bytes_per_second
    tokens = (options.prompt_tokens, load.num_output_tokens)
    utilisation = pair_utilisation(facts.prefiller, facts.decoder, link, per_second, *tokens)
    if most:
        utilisation = replace(utilisation, prefill=load.rate / most)
    context = options.prompt_tokens + load.num_output_tokens / 2
    growth = facts.decoder.step_seconds(2, context) / facts.decoder.step_seconds(1, context) - 1
    return _Planned(load, utilisation, service_seconds, alone, growth)


def _print_utilisation(pair: Pair, facts: NodeFacts, planned: Sequence[_Planned]) -> None:
    scale = pair.time_scale
    told = [f"{pair.deployment}, {' and '.join(pair.engines)}, time x {scale:g}; {_speeds(facts)}"]
    for load, used, service_seconds, alone, _ in planned:
        parts = f"prefill {used.prefill:.2f}, link {used.link:.2f}, decode {used.decode:.2f}"
        times = f"alone TTFT {alone.ttft_seconds / scale:.3f} s, TPOT {1000 * alone.tpot_seconds / scale:.1f} ms"
        name = f"{load.rate:5.3g}/s, {load.num_output_tokens:3} out"
        told.append(f"  {name}: utilisation of {parts}; a prompt takes {service_seconds / scale:.3f} s; {times}")
    print("\n".join(told), flush=True)  # in one piece, since others print beside it


def _speeds(facts: NodeFacts) -> str:
    return (
        f"prefill {facts.prefiller.node_id} {facts.prefiller.prefill_flops / 1e12:.3g} TFLOP/s,"
        f" decode {facts.decoder.node_id} {facts.decoder.decode_bytes_per_second / 1e9:.4g} GB/s,"
        f" link {facts.link_bytes_per_second / 1e9:.3g} GB/s"
    )


def _row(client: _Client, plan: _Planned, pair: Pair, options: argparse.Namespace, name: str) -> Row:
    load, runs = plan.load, list[tuple[RequestSample, ...]]()
    cpu = HostCpu()
    for seed in range(options.seeds):
        random = Random(f"{seed}/{load.rate}/{load.num_output_tokens}")
        count = max(2, round(options.count / options.seeds))
        sessions = client.sessions(random, count, load.num_output_tokens)
        arrivals = poisson(count, load.rate / pair.time_scale, random)
        began = time.monotonic()
        runs.append(tuple(client.run(sessions, arrivals)))
        seconds = time.monotonic() - began
        told = f"{name}, {load.rate:g}/s, {load.num_output_tokens} out, seed {seed}"
        say(f"{told}: {seconds:.0f} s, CPU {100 * cpu.share():.0f} %")
    return Row(
        deployment=pair.deployment,
        rate=load.rate,
        num_output_tokens=load.num_output_tokens,
        time_scale=pair.time_scale,
        utilisation=plan.utilisation,
        service_seconds=plan.service_seconds,
        alone=plan.alone,
        growth=plan.growth,
        host_cpu_share=cpu.share(),
        is_link_shaped=pair.link_bytes_per_second > 0,
        runs=tuple(runs),
    )


class _Client:
    """Sends prompts of one length to the gateway; every prompt is new, so that none is cached."""

    def __init__(self, endpoints: Endpoints, num_prompt_tokens: int, time_scale: float) -> None:
        self._url = endpoints.url
        self._num_prompt_tokens = num_prompt_tokens
        self._settings = LoadSettings(COMPLETIONS_PATH, Sampling("model"), timeout_seconds=300 * time_scale)

    def sessions(self, random: Random, count: int, num_output_tokens: int) -> list[Session]:
        """Return requests of the run's prompt length."""
        lengths = {"prompt_tokens": self._num_prompt_tokens, "output_tokens": num_output_tokens}
        return fixed_lengths(_VOCABULARY, random, count, **lengths)

    def run(self, sessions: Sequence[Session], arrivals: Sequence[float]) -> list[RequestSample]:
        """Return the samples of all requests."""

        async def send() -> list[RequestSample]:
            with closing(HttpClient(self._url)) as client:
                return await run_load(client, sessions, arrivals, self._settings)

        return asyncio.run(send())

    def alone(self, seed: str, num_output_tokens: int) -> Alone:
        """Return what a request gets on idle nodes; raise RuntimeError if one fails."""
        random = Random(f"alone/{seed}/{num_output_tokens}")
        for session in self.sessions(random, _NUM_WARM_UP, _WARM_UP_TOKENS):
            self._one(session)
        cpu, began = HostCpu(), time.monotonic()
        samples = [self._one(session) for session in self.sessions(random, _NUM_ALONE, num_output_tokens)]
        seconds = time.monotonic() - began
        return Alone.of(samples, cpu.share() * seconds * (os.cpu_count() or 1))

    def _one(self, session: Session) -> RequestSample:
        (sample,) = self.run([session], [0.0])
        if not sample.is_ok:
            raise RuntimeError(f"a request on idle nodes failed: {sample.error}")
        return sample
