"""Requests that come, share beginnings, are cancelled and preempted, for a while: tokens, blocks and memory hold.

`BATON_GPU_SOAK_SECONDS` says how long.
"""

from __future__ import annotations

import os
import queue
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from baton.engine.engine import Engine
from baton.engine.events import Ended, EngineEvent, Failed, TokenReady
from baton.engine.request import EngineRequest, SamplingParams
from checkpoints import VOCABULARY_SIZE, CheckpointName, checkpoint
from exactness.handover import start_engine
from gpu.device import DEVICE, IS_CUDA, SEED, device_runner, keep
from gpu.equality import check_tokens

SOAK_SECONDS = float(os.environ.get("BATON_GPU_SOAK_SECONDS", "60" if IS_CUDA else "4"))
FAMILIES: tuple[CheckpointName, ...] = ("llama", "qwen3", "gpt_oss")
"""Among whom the time is shared out: with graphs, and in transformers' code."""
NUM_BLOCKS, HOST_BYTES, NUM_LIVING = 40, 2**24, 24
NUM_KINDS = 120
CANCELLED_SHARE, DRAWN_SHARE, SHARED_SHARE = 0.2, 0.3, 0.5
MAX_GROWN_SHARE = 0.01
"""Of memory between a quarter of the time and its end."""


class Kind(NamedTuple):
    """A request, as often as it is asked."""

    prompt: tuple[int, ...]
    params: SamplingParams

    def request(self, name: str) -> EngineRequest:
        """Return it by a name."""
        return EngineRequest(request_id=name, prompt_token_ids=self.prompt, params=self.params)


@dataclass
class Asked:
    """A request and what came of it."""

    index: int
    """Which kind it is of."""
    request: EngineRequest
    cancel_after: int | None = None
    """Tokens after which it is dropped; None: it is left to its end."""
    events: queue.SimpleQueue[EngineEvent] = field(default_factory=queue.SimpleQueue)
    output: list[int] = field(default_factory=list)
    num_preemptions: int = 0

    def take(self) -> bool:
        """Take what has come; return whether nothing more will."""
        while True:
            try:
                event = self.events.get_nowait()
            except queue.Empty:
                return False
            if isinstance(event, TokenReady):
                assert event.output_index == len(self.output)
                self.output.append(event.token.token_id)
            elif isinstance(event, Failed):
                raise event.error
            elif isinstance(event, Ended):
                self.num_preemptions = event.num_preemptions
                return True


@dataclass
class Tally:
    """What happened."""

    finished: list[Asked] = field(default_factory=list)
    num_cancelled: int = 0
    num_preemptions: int = 0
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    """Share of the time that is over, bytes of the device allocated and reserved."""


def draw_kinds(draw: random.Random) -> list[Kind]:
    """Return requests of any length, half of them with a beginning in common."""
    prefixes = [draw.choices(range(3, VOCABULARY_SIZE), k=120) for _ in range(3)]
    kinds = []
    for _ in range(NUM_KINDS):
        own = draw.choices(range(3, VOCABULARY_SIZE), k=draw.choice((1, 2, 15, 16, 17, 40, 130, draw.randint(1, 300))))
        prompt = [*draw.choice(prefixes)[: draw.randint(1, 120)], *own] if draw.random() < SHARED_SHARE else own
        temperature = draw.choice((0.6, 1.0)) if draw.random() < DRAWN_SHARE else 0.0
        seed, num_tokens = draw.randint(-9, 9), draw.randint(1, 64)
        params = SamplingParams(temperature=temperature, seed=seed, ignore_eos=True, max_tokens=num_tokens)
        kinds.append(Kind(tuple(prompt), params))
    return kinds


def soak(engine: Engine, kinds: list[Kind], draw: random.Random, seconds: float) -> Tally:
    """Keep an engine busy with requests of some kinds, some of them cancelled, then let it finish."""
    tally, living, number = Tally(), list[Asked](), 0
    started = time.monotonic()
    while (share := (time.monotonic() - started) / seconds) < 1 or living:
        while share < 1 and len(living) < NUM_LIVING:
            index = draw.randrange(len(kinds))
            asked = Asked(index, kinds[index].request(f"r{number}"))
            if draw.random() < CANCELLED_SHARE:
                asked.cancel_after = draw.randrange(kinds[index].params.max_tokens or 1)
            living.append(asked)
            engine.submit(asked.request, asked.events.put)
            number += 1
        for asked in list(living):
            if asked.take():
                tally.finished.append(asked)
                tally.num_preemptions += asked.num_preemptions
                living.remove(asked)
            elif asked.cancel_after is not None and len(asked.output) >= asked.cancel_after:
                engine.abort(asked.request)
                tally.num_cancelled += 1
                living.remove(asked)
        if IS_CUDA and share < 1:
            tally.memory.append((share, torch.cuda.memory_allocated(DEVICE), torch.cuda.memory_reserved(DEVICE)))
        time.sleep(0.002)
        assert time.monotonic() - started < seconds + 60, f"{len(living)} requests do not end"
    return tally


def outputs_alone(engine: Engine, folder: Path, kinds: list[Kind], tally: Tally) -> dict[int, list[int]]:
    """Return what each kind that has finished gives when nothing else runs; greedy ones are checked first."""
    alone = dict[int, list[int]]()
    for index in sorted({asked.index for asked in tally.finished}):
        again = Asked(index, kinds[index].request(f"alone-{index}"))
        engine.submit(again.request, again.events.put)
        while not again.take():
            time.sleep(0.001)
        if kinds[index].params.is_greedy:
            check_tokens(folder, kinds[index].prompt, again.output)
        alone[index] = again.output
    return alone


def num_leaked(engine: Engine) -> int:
    """Return the blocks that are not free once nothing runs, aborted passes included; the engine proves its pool."""
    answer: queue.SimpleQueue[int] = queue.SimpleQueue()

    def prove() -> None:
        engine.scheduler.check_integrity()
        answer.put(NUM_BLOCKS - engine.scheduler.pool.num_available)

    deadline = time.monotonic() + 10
    while True:
        engine.call(prove)
        leaked = answer.get(timeout=60)
        if not leaked or time.monotonic() > deadline:
            return leaked
        time.sleep(0.05)


def grown(memory: list[tuple[float, int, int]]) -> tuple[float, float]:
    """Return by what share the most that was allocated and reserved is larger at the end than at a quarter."""
    early = [each for each in memory if 0.15 < each[0] <= 0.35] or memory[:1]
    late = [each for each in memory if each[0] > 0.8] or memory[-1:]
    return tuple(max(row[kind] for row in late) / max(row[kind] for row in early) - 1 for kind in (1, 2))  # type: ignore[return-value]


@pytest.mark.timeout(600 + 4 * SOAK_SECONDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_finished_request_has_the_tokens_that_it_has_alone(name: CheckpointName) -> None:
    """Greedy ones those of transformers, drawn ones those of an idle engine; nothing is left behind."""
    engine = start_engine(
        device_runner(checkpoint(name), num_blocks=NUM_BLOCKS), max_step_tokens=96, host_bytes=HOST_BYTES
    )
    kinds = draw_kinds(random.Random(SEED))
    tally = soak(engine, kinds, random.Random(SEED + 1), SOAK_SECONDS / len(FAMILIES))
    leaked = num_leaked(engine)
    alone = outputs_alone(engine, checkpoint(name), kinds, tally)
    wrong = [asked.request.request_id for asked in tally.finished if asked.output != alone[asked.index]]
    allocated, reserved = grown(tally.memory) if IS_CUDA else (0.0, 0.0)
    engine.close()
    keep(
        f"soak-{name}",
        {
            "seconds": SOAK_SECONDS / len(FAMILIES),
            "finished": len(tally.finished),
            "drawn": sum(not asked.request.params.is_greedy for asked in tally.finished),
            "kinds": len(alone),
            "tokens": sum(len(asked.output) for asked in tally.finished),
            "cancelled": tally.num_cancelled,
            "preemptions": tally.num_preemptions,
            "wrong": wrong[:20],
            "num_wrong": len(wrong),
            "leaked_blocks": leaked,
            "allocated_grown_share": allocated,
            "reserved_grown_share": reserved,
            "memory": tally.memory[:: max(1, len(tally.memory) // 50)],
        },
    )

    assert wrong == []
    assert leaked == 0
    assert not IS_CUDA or (tally.num_cancelled > 0 and tally.num_preemptions > 0), "too little happened"
    assert allocated <= MAX_GROWN_SHARE
    assert reserved <= MAX_GROWN_SHARE
