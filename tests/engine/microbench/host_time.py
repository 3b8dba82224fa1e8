"""Drives an engine with a batch that decodes, and measures the passes between the first token of all and the last."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from baton.engine.engine import Engine
from baton.engine.events import Ended, EngineEvent, Failed, TokenReady
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import Deliverable, Delivery, Tokens, deliver
from baton.engine.runners.base import Launched, Logits, Runner, Span
from baton.engine.scheduling.admission import SchedulerLimits

ResultT = TypeVar("ResultT")

_TIMEOUT_SECONDS = 120.0
_PROMPT_TOKENS = 8


class Load(NamedTuple):
    """A batch of requests that come together."""

    batch_size: int
    num_passes: int
    """Tokens of each output, 3 or more."""
    temperature: float
    """0: greedy."""


class Measured(NamedTuple):
    """What the decode passes of a load took."""

    tokens_per_second: float
    tpot_seconds: float
    host_seconds: float
    """CPU time of the engine's thread per pass, outside the runner."""
    process_seconds: float
    """CPU time of all threads per pass, the runner's included."""


class _Reading(NamedTuple):
    """Clocks at one moment."""

    seconds: float
    host_seconds: float
    process_seconds: float


class _Meter:
    """Reads the clocks when every request has two tokens, and when every one has ended; in the engine's thread."""

    def __init__(self, load: Load, runner: TimedRunner, forward: Callable[[list[Deliverable]], None]) -> None:
        self._load = load
        self._runner = runner
        self._forward = forward
        self._num_tokens = self._num_ended = 0
        self._begun: _Reading | None = None
        self.results: queue.SimpleQueue[Measured | Exception] = queue.SimpleQueue()

    def post(self, deliveries: list[Deliverable]) -> None:
        """Take what an engine delivers."""
        if self._begun is None:
            self._num_tokens += sum(map(tokens_of, deliveries))
            if self._num_tokens >= 2 * self._load.batch_size:
                self._begun = self._read()
        for each in deliveries:
            if type(each) is Delivery and type(each.event) is not TokenReady:
                self._note_end(each.event)
        self._forward(deliveries)

    def _note_end(self, event: EngineEvent) -> None:
        if isinstance(event, Failed):
            self.results.put(event.error)
        self._num_ended += isinstance(event, Ended)
        if self._num_ended == self._load.batch_size and self._begun is not None:
            spent, host, process = (now - begun for begun, now in zip(self._begun, self._read(), strict=True))
            num_tokens = self._load.batch_size * self._load.num_passes - self._num_tokens
            num_passes = num_tokens / self._load.batch_size
            measured = Measured(
                tokens_per_second=num_tokens / spent,
                tpot_seconds=spent / num_passes,
                host_seconds=host / num_passes,
                process_seconds=process / num_passes,
            )
            self.results.put(measured)

    def _read(self) -> _Reading:
        return _Reading(time.perf_counter(), time.thread_time() - self._runner.cpu_seconds, time.process_time())


def measure(runner: Runner, load: Load) -> Measured:
    """Run a load through an engine, listeners in a thread of their own as on a node.

    Raises:
        BatonError: If a request fails.
        TimeoutError: If it does not end.
    """
    timed = TimedRunner(runner)
    deliveries = queue.SimpleQueue[list[Deliverable] | None]()
    meter = _Meter(load, timed, deliveries.put)
    limits = SchedulerLimits(load.batch_size, load.batch_size * (_PROMPT_TOKENS + 1), shares_prompts=False)
    engine = Engine(cast(Runner, timed), limits, post=meter.post)
    consumer = threading.Thread(target=_consume, args=(deliveries,), daemon=True)
    consumer.start()
    for request in _requests(load, runner.info.vocabulary_size):
        engine.submit(request, lambda _event: None)
    engine.start()
    try:
        result = meter.results.get(timeout=_TIMEOUT_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"{load} did not end within {_TIMEOUT_SECONDS:g} s") from None
    finally:
        engine.close()
        deliveries.put(None)
        consumer.join()
    if isinstance(result, Exception):
        raise result
    return result


def _requests(load: Load, vocabulary_size: int) -> list[EngineRequest]:
    prompts = np.random.default_rng(load.batch_size).integers(3, vocabulary_size, (load.batch_size, _PROMPT_TOKENS))
    return [
        EngineRequest(
            f"r{index}",
            tuple(prompt),
            SamplingParams(temperature=load.temperature, seed=index, ignore_eos=True, max_tokens=load.num_passes),
        )
        for index, prompt in enumerate(prompts.tolist())
    ]


def tokens_of(each: Deliverable) -> int:
    """Return how many tokens a delivery brings."""
    return len(each.token_ids) if isinstance(each, Tokens) else int(isinstance(each.event, TokenReady))


def _consume(deliveries: queue.SimpleQueue[list[Deliverable] | None]) -> None:
    while (each := deliveries.get()) is not None:
        deliver(each)


class TimedRunner:
    """Stands for another runner, which outlives the engines that close this one.

    Attributes:
        cpu_seconds: Of the calling thread in the other runner's passes.
    """

    def __init__(self, runner: Runner) -> None:
        self.cpu_seconds = 0.0
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def launch(self, spans: Sequence[Span], *, after: Launched | None = None, **how: Any) -> Launched:
        """Begin a pass."""
        inner = after.inner if isinstance(after, TimedPass) else after
        return TimedPass(self.timed(self._runner.launch, spans, after=inner, **how), self)

    def timed(self, function: Callable[..., ResultT], *arguments: Any, **named: Any) -> ResultT:
        """Return what a function does, and count its time."""
        started = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            self.cpu_seconds += time.thread_time() - started

    def close(self) -> None:
        """Leave the other runner as it is."""


class TimedPass:
    """A pass in flight on the other runner."""

    def __init__(self, inner: Launched, runner: TimedRunner) -> None:
        self.inner = inner
        self._runner = runner

    def tokens(self, step: int = 0) -> list[int]:
        """Return the tokens of a step."""
        return self._runner.timed(self.inner.tokens, step)

    def logits(self) -> Logits:
        """Return the logits."""
        return self._runner.timed(self.inner.logits)

    def cut(self, num_steps: int) -> int:
        """Ask for no more than some steps."""
        return self.inner.cut(num_steps)
