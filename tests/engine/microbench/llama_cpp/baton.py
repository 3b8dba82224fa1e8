"""Computes what standard input tells, by Baton's engine on torch, and prints the seconds that it took.

Arguments: folder, dtype, threads and, if wanted, blocks of KV.
"""

from __future__ import annotations

import queue
import sys
import time
from itertools import count
from pathlib import Path

import numpy as np

from baton.engine.engine import Engine
from baton.engine.events import Ended, Failed
from baton.engine.request import EngineRequest, SamplingParams
from baton.engine.request_registry import Deliverable, Delivery
from baton.engine.runners.torch import load_torch_runner
from baton.engine.scheduling.admission import SchedulerLimits
from engine.microbench.host_time import tokens_of

_TIMEOUT_SECONDS = 300.0
_NUM_BLOCKS = 600
_TAIL_TOKENS = 8
"""Generated before the clock starts: all sequences decode by then."""


class Rig:
    """An engine, and when it brought tokens."""

    def __init__(self, folder: Path, dtype: str, num_threads: int, num_blocks: int) -> None:
        self._posts = queue.SimpleQueue[tuple[float, list[Deliverable]]]()
        options = {"num_blocks": num_blocks, "dtype": dtype, "num_threads": num_threads}
        runner = load_torch_runner(folder, model_id="model", **options)
        limits = SchedulerLimits(shares_prompts=False)
        self._engine = Engine(runner, limits, post=lambda each: self._posts.put((time.perf_counter(), each)))
        self._engine.start()
        self._num_tokens = runner.info.vocabulary_size
        self._random = np.random.default_rng(0)
        self._names = count()

    def seconds(self, num_sequences: int, num_tokens: int, num_before: int) -> float:
        """Return the time of decoding so many tokens of each sequence after a prompt; of 0, of the prompt."""
        max_tokens = num_tokens + _TAIL_TOKENS if num_tokens else 1
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
        for _ in range(num_sequences):
            prompt = tuple(self._random.integers(3, self._num_tokens, num_before).tolist())
            self._engine.submit(EngineRequest(f"r{next(self._names)}", prompt, params), lambda _event: None)
        started = time.perf_counter()
        times = self._token_times(num_sequences)
        return times[-1] - (times[-num_sequences * num_tokens - 1] if num_tokens else started)

    def _token_times(self, num_sequences: int) -> list[float]:
        times, num_ended = list[float](), 0
        while num_ended < num_sequences:
            now, deliveries = self._posts.get(timeout=_TIMEOUT_SECONDS)
            for each in deliveries:
                times += [now] * tokens_of(each)
                if isinstance(each, Delivery):
                    if isinstance(each.event, Failed):
                        raise each.event.error
                    num_ended += isinstance(each.event, Ended)
        return times


def main() -> None:
    """Serve orders until the input ends."""
    folder, dtype, num_threads, *num_blocks = sys.argv[1:]
    rig = Rig(Path(folder), dtype, int(num_threads), int(num_blocks[0]) if num_blocks else _NUM_BLOCKS)
    print("ready", flush=True)
    for line in sys.stdin:
        kind, *numbers = line.split()
        if kind == "prompt":
            print(rig.seconds(1, 0, int(numbers[0])), flush=True)
        else:
            print(rig.seconds(*map(int, numbers)), flush=True)


if __name__ == "__main__":
    main()
