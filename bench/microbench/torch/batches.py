"""Times batches of requests from the first submission to the last token: Baton's engine, transformers' batching."""

from __future__ import annotations

import queue
import random
import time
from typing import Any, NamedTuple

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from baton.engine.engine import Engine
from baton.engine.events import Ended, EngineEvent, Failed
from baton.engine.limits import SchedulerLimits
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import deliver
from baton.engine.runners.base import Runner
from baton.errors import BatonError

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


def run_baton(runner: Runner, workload: Workload, *, temperature: float, max_step_tokens: int) -> Throughput:
    """Run a workload through the engine, which is closed afterwards; raise BatonError if a request fails."""
    events: queue.SimpleQueue[EngineEvent] = queue.SimpleQueue()
    limits = SchedulerLimits(max_batch_size=workload.num_requests, max_step_tokens=max_step_tokens)
    engine = Engine(runner, limits, post=deliver)
    engine.start()
    try:
        started = time.perf_counter()
        for index, (prompt, num_output) in enumerate(workload.requests()):
            params = SamplingParams(temperature=temperature, seed=index, ignore_eos=True, max_tokens=num_output)
            engine.submit(EngineRequest(f"request-{index}", tuple(prompt), params), events.put)
        num_tokens = num_ended = 0
        while num_ended < workload.num_requests:
            event = events.get(timeout=_TIMEOUT_SECONDS)
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Ended):
                num_ended += 1
                num_tokens += event.num_output_tokens
        return Throughput(num_tokens, time.perf_counter() - started)
    finally:
        engine.close()


def run_transformers(model: Any, workload: Workload, *, num_cache_blocks: int, max_step_tokens: int) -> Throughput:
    """Run a workload through transformers' continuous batching, greedily; raise BatonError if it stands still."""
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=num_cache_blocks, max_batch_tokens=max_step_tokens
        ),
    )
    manager.start()
    try:
        started = time.perf_counter()
        for prompt, num_output in workload.requests():
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
