"""Measures decoding through the whole engine, with KV that arrives: a child of `baton bench mlx-decode`.

Run as `python -m bench.microbench.mlx_decode FOLDER`; answers each line of standard input. `{"size", "num_tokens",
"num_joins", "seed"}` is answered by CPU seconds, tokens, and the seconds between the passes that delivered them;
`{"size", "prompt_tokens", "num_joins", "num_steps", "seed"}` by the seconds between steps, and the steps before each
join.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from baton.engine.engine import Engine
from baton.engine.events import Admitted, Ended, EngineEvent, Failed, Listener
from baton.engine.limits import SchedulerLimits
from baton.engine.request import EngineRequest, Purpose, SamplingParams
from baton.engine.request_registry import Deliverable, deliver
from baton.engine.runners.mlx import MlxRunner, load_mlx_runner
from baton.engine.sampling import SampledToken
from baton.kv.stream import KvFrame
from bench.microbench.engine.host_time import tokens_of
from bench.processes import answer_lines

CONTEXT = 512
"""Positions that arrive."""
_BLOCK_TOKENS = 16
_JOIN_TOKENS = 3
"""Output of who joins, who is gone before the next one comes."""


class DecodeBench:
    """An engine, and requests whose KV is drawn at random."""

    def __init__(self, folder: Path) -> None:
        self._runner: MlxRunner = load_mlx_runner(folder, model_id="m", num_blocks=2048, block_tokens=_BLOCK_TOKENS)
        self._engine = Engine(self._runner, SchedulerLimits(max_batch_size=64), post=self._post)
        self._engine.start()
        self._num_asked = 0
        self._requests: dict[str, EngineRequest] = {}
        self._moments: list[tuple[float, int]] = []
        self._landed = threading.Semaphore(0)
        self._stepped = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        self._errors: list[str] = []

    def measure(self, size: int, num_tokens: int, num_joins: int, seed: int) -> dict[str, object]:
        """Return what it cost to decode `size` requests together.

        Args:
            size: Requests at once.
            num_tokens: Of each, beyond the first.
            num_joins: Requests that join one after the other, each when an earlier one has left.
            seed: Of prompts.
        """
        random = np.random.default_rng(seed)
        frames = self._frames()
        per_join = max(1, num_tokens // size)
        lengths = [num_tokens if not num_joins else per_join * (index + 1) for index in range(size)]
        first = [self._land(random, frames, length + 1) for length in lengths]
        self._moments.clear()
        started = time.process_time()
        for name in first:
            self._start(name)
        for _ in range(num_joins):
            self._ended.acquire()
            self._start(self._land(random, frames, num_tokens + 1))
        for _ in range(size):
            self._ended.acquire()
        seconds = time.process_time() - started
        if self._errors:
            raise RuntimeError(self._errors[0])
        times = [moment for moment, _ in self._moments]
        return {
            "cpu_seconds": seconds,
            "tokens": sum(count for _, count in self._moments) - size - num_joins,
            "gaps": [round(later - earlier, 5) for earlier, later in pairwise(times)],
        }

    def measure_joins(
        self, size: int, prompt_tokens: int, num_joins: int, num_steps: int, seed: int
    ) -> dict[str, object]:
        """Return when `size` running requests got their tokens while others joined them.

        Args:
            size: Requests that run all the time.
            prompt_tokens: Of who joins, computed here; 0: it has `CONTEXT` positions of KV that have landed.
            num_joins: Requests that join, one after the other.
            num_steps: Steps before and after each.
            seed: Of prompts.
        """
        random = np.random.default_rng(seed)
        frames = self._frames()
        running = [self._land(random, frames, self._runner.info.max_context_tokens - CONTEXT) for _ in range(size)]
        for name in running:
            self._start(name)
        self._moments.clear()
        self._await_steps(num_steps, size)
        marks = []
        for _ in range(num_joins):
            joining = None if prompt_tokens else self._land(random, frames, _JOIN_TOKENS)
            self._await_steps(num_steps, size)
            marks.append(len(self._steps(size)))
            if joining is None:
                prompt = random.integers(10, self._runner.info.vocabulary_size, prompt_tokens).tolist()
                self._submit(prompt, _JOIN_TOKENS)
            else:
                self._start(joining)
            self._await_steps(num_steps + 1, size)
        for _ in range(num_joins):
            self._ended.acquire()
        for name in running:
            self._engine.abort(self._requests[name])
        if self._errors:
            raise RuntimeError(self._errors[0])
        gaps = [round(later - earlier, 5) for earlier, later in pairwise(self._steps(size))]
        return {"gaps": gaps, "marks": marks}

    def _steps(self, size: int) -> list[float]:
        """Return when passes delivered a token of each running request."""
        return [moment for moment, num_tokens in list(self._moments) if num_tokens >= size]

    def _await_steps(self, num_steps: int, size: int) -> None:
        end = len(self._steps(size)) + num_steps
        while len(self._steps(size)) < end and not self._errors:
            self._stepped.acquire(timeout=60)

    def _submit(self, prompt: Sequence[int], max_tokens: int, purpose: Purpose = Purpose.GENERATE) -> str:
        """Submit a request and wait until it is admitted; return its id."""
        self._num_asked += 1
        name = f"r{self._num_asked}"
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        request = EngineRequest(name, tuple(prompt), params, purpose=purpose, is_cache_bypassed=True)
        self._requests[name] = request
        self._engine.submit(request, self._listener(name))
        self._landed.acquire()
        return name

    def _land(self, random: np.random.Generator, frames: Sequence[KvFrame], max_tokens: int) -> str:
        """Submit a request and let its KV land; return its id."""
        prompt = random.integers(10, self._runner.info.vocabulary_size, CONTEXT).tolist()
        name = self._submit(prompt, max_tokens, Purpose.RECEIVE)
        for frame in frames:
            self._engine.write_kv(name, frame)
        return name

    def _start(self, name: str) -> None:
        self._engine.take_first_token(name, SampledToken(11))
        self._engine.commit_kv(name)

    def _listener(self, name: str) -> Listener:
        def listen(event: EngineEvent) -> None:
            if isinstance(event, Admitted):
                self._landed.release()
            elif isinstance(event, Failed):
                self._errors.append(f"{name}: {event.error}")
                self._landed.release()
                self._ended.release()
            elif isinstance(event, Ended):
                self._ended.release()

        return listen

    def _post(self, deliveries: list[Deliverable]) -> None:
        num_tokens = sum(map(tokens_of, deliveries))
        if num_tokens:
            self._moments.append((time.perf_counter(), num_tokens))
            self._stepped.release()
        deliver(deliveries)

    def _frames(self) -> list[KvFrame]:
        spec = self._runner.info.layout.layers[0]
        draws = np.random.default_rng(0).standard_normal((spec.num_kv_heads, CONTEXT, spec.key_head_dim))
        data = draws.astype(np.float32).tobytes()
        return [
            KvFrame(layer_begin=layer, num_layers=1, token_begin=0, num_tokens=CONTEXT, keys=data, values=data)
            for layer in range(self._runner.info.layout.num_layers)
        ]


def main(folder: str) -> None:
    """Answer until standard input ends."""
    bench = DecodeBench(Path(folder))
    answer_lines(lambda asked: (bench.measure_joins if "prompt_tokens" in asked else bench.measure)(**asked))


if __name__ == "__main__":
    main(sys.argv[1])
