"""Times batches of requests from the first submission to the last token: Baton's engine, transformers' batching."""

from __future__ import annotations

import queue
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from baton.engine.engine import Engine
from baton.engine.events import Ended, EngineEvent, Failed
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import deliver
from baton.engine.runners.base import Runner, Span
from baton.engine.scheduling.admission import SchedulerLimits
from baton.errors import BatonError
from baton.rpc.process import freeze_loaded_objects

_TIMEOUT_SECONDS = 300.0


class Workload(NamedTuple):
    """Requests that come all at once, as in nano-vllm's bench.py: lengths drawn evenly, ends of text ignored."""

    num_requests: int
    min_tokens: int
    """Of a prompt and of an output."""
    max_tokens: int
    vocabulary_size: int
    seed: int = 0

    def requests(self) -> list[tuple[list[int], int]]:
        """Return prompts and how many tokens each is answered by."""
        draw = random.Random(self.seed)
        sizes = [
            (draw.randint(self.min_tokens, self.max_tokens), draw.randint(self.min_tokens, self.max_tokens))
            for _ in range(self.num_requests)
        ]
        return [
            (draw.choices(range(10, self.vocabulary_size), k=num_prompt), num_output)
            for num_prompt, num_output in sizes
        ]


class Throughput(NamedTuple):
    """What a batch took."""

    num_output_tokens: int
    seconds: float
    num_steps: int = 0
    """Passes and steps of launches of several."""
    host_seconds: float = 0.0
    """CPU time of the engine's thread but for its waiting for the device."""


class HostClock:
    """A runner that adds up the CPU time of the thread that launches, less what it waits for tokens."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.reset()

    def reset(self) -> None:
        """Count from the next launch on."""
        self.num_steps = 0
        self.waited_seconds = self.begun_seconds = self.ended_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        """Return whatever else a runner has."""
        return getattr(self._runner, name)

    def launch(self, spans: Sequence[Span], *, num_steps: int = 1, **others: Any) -> Any:
        """Launch a pass, and count it."""
        self.begun_seconds = self.begun_seconds or time.thread_time()
        launched: Any = self._runner.launch(spans, num_steps=num_steps, **others)
        self.num_steps += num_steps
        self.ended_seconds = time.thread_time()
        launched._wait = partial(self._wait, launched._wait)
        return launched

    def _wait(self, wait: Callable[[int], None], step: int) -> None:
        started_seconds = time.thread_time()
        wait(step)
        self.waited_seconds += time.thread_time() - started_seconds


def run_baton(runner: Runner, workload: Workload, *, temperature: float, max_step_tokens: int) -> Throughput:
    """Run a workload, behind a short request, by an engine that is closed then; raise BatonError if one fails."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    limits = SchedulerLimits(max_batch_size=workload.num_requests, max_step_tokens=max_step_tokens)
    clock = HostClock(runner)
    engine = Engine(cast(Runner, clock), limits, post=deliver)
    engine.start()
    try:
        _answer_all(engine, [([7] * 8, 4)], temperature, events)
        requests = workload.requests()
        freeze_loaded_objects()  # as a node does, once it has started
        clock.reset()
        started = time.perf_counter()
        num_tokens = _answer_all(engine, requests, temperature, events)
        seconds = time.perf_counter() - started
        host_seconds = clock.ended_seconds - clock.begun_seconds - clock.waited_seconds
        return Throughput(num_tokens, seconds, clock.num_steps, host_seconds)
    finally:
        engine.close()


def _answer_all(
    engine: Engine,
    requests: Sequence[tuple[list[int], int]],
    temperature: float,
    events: queue.SimpleQueue[EngineEvent],
) -> int:
    """Return the tokens of all requests, which come at once."""
    for index, (prompt, num_output) in enumerate(requests):
        params = SamplingParams(temperature=temperature, seed=index, ignore_eos=True, max_tokens=num_output)
        engine.submit(EngineRequest(f"request-{len(requests)}-{index}", tuple(prompt), params), events.put)
    num_tokens = num_ended = 0
    while num_ended < len(requests):
        event = events.get(timeout=_TIMEOUT_SECONDS)
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Ended):
            num_ended += 1
            num_tokens += event.num_output_tokens
    return num_tokens


def run_transformers(model: Any, workload: Workload, *, num_cache_blocks: int, max_step_tokens: int) -> Throughput:
    """Run a workload through transformers' continuous batching, greedily; raise BatonError if it stands still."""
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=num_cache_blocks, max_batch_tokens=max_step_tokens
        ),
    )
    requests = workload.requests()
    freeze_loaded_objects()
    manager.start()
    try:
        started = time.perf_counter()
        for prompt, num_output in requests:
            manager.add_request(prompt, max_new_tokens=num_output)
        num_tokens = 0
        for _ in range(workload.num_requests):
            result = manager.get_result(timeout=_TIMEOUT_SECONDS)
            if result is None:
                raise BatonError(f"transformers' continuous batching gave no result for {_TIMEOUT_SECONDS:.0f} s")
            num_tokens += len(result.generated_tokens)
        return Throughput(num_tokens, time.perf_counter() - started)
    finally:
        manager.stop(block=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
