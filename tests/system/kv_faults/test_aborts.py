"""Requests that their clients give up at any moment: every tier is free again soon after, and nothing leaks.

`BATON_ABORTS=1000 pytest -s tests/system/kv_faults/test_aborts.py` gives up as many, and prints how long that took;
BATON_FAULTS_SEED draws others, and BATON_ABORTS_OUT names a file for the samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest

from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest as Request
from decode.neighbour import Neighbour, pulling_request, with_neighbour
from decode.pair import Node, Pair, generate, request_of, with_pair
from engine.rig import GREEDY, expected_tokens, prompt_of
from order import RUNS_ALL
from system.kv_faults.report import described_run, quantile
from system.kv_faults.test_kv_faults import LENT_BYTES, SEED

NUM_ABORTS = int(os.environ.get("BATON_ABORTS", "10000" if RUNS_ALL else "80"))
OUT = os.environ.get("BATON_ABORTS_OUT", "")
MOST_FREEING_SECONDS = 0.2
"""Within which 99 of 100 aborts have freed everything, on a machine that is not busy with other things."""
_NUM_TOKENS = 30
_PROMPT_TOKENS = (17, 41, 120)

pytestmark = pytest.mark.timeout(300 + NUM_ABORTS)


class Aborts:
    """Begins requests one after the other, and gives each up at a moment that is drawn.

    Args:
        pair: The nodes.
        neighbour: From whose cache prompts are pulled; None: they are computed by the prefill node.
        drawn: Of moments and prompts.
    """

    def __init__(self, pair: Pair, neighbour: Neighbour | None, drawn: random.Random) -> None:
        self._pair, self._neighbour, self._drawn = pair, neighbour, drawn
        self._nodes = [pair.decode, pair.prefill, *([neighbour.node] if neighbour else [])]
        self.freeing_seconds: list[float] = []
        """From each abort until all tiers were free."""
        self.num_late = 0
        """Requests that had ended when they were to be given up."""

    async def run(self, num_aborts: int) -> None:
        """Give up so many; every tenth time another request must go on unharmed, which shows in its tokens."""
        number = 0
        while len(self.freeing_seconds) < num_aborts:
            number += 1
            if number % 10 == 0:
                prompt = prompt_of(41, seed=number)
                _, answer = await asyncio.gather(
                    self._abort(number, is_timed=False), generate(self._pair, self._request(prompt, f"beside-{number}"))
                )
                assert answer.token_ids == expected_tokens(prompt, _NUM_TOKENS)
                await self._until_free()
                self._pair.forget()
            else:
                await self._abort(number, is_timed=True)

    async def _abort(self, number: int, *, is_timed: bool) -> None:
        prompt = prompt_of(self._drawn.choice(_PROMPT_TOKENS), seed=self._drawn.randrange(1000))
        request = self._request(prompt, f"r{number}")
        if self._neighbour is not None:
            await self._neighbour.warm(prompt, cache_salt=request.cache_salt)
        call = self._pair.stub.Generate(request)
        num_read, pause = self._drawn.randrange(_NUM_TOKENS), self._drawn.random() * 0.01
        with contextlib.suppress(grpc.aio.AioRpcError):
            if self._drawn.random() < 0.5:
                await asyncio.sleep(pause)
            for _ in range(num_read if self._drawn.random() < 0.5 else 0):
                if await call.read() is grpc.aio.EOF:
                    break
        aborted = time.perf_counter()
        is_late = not call.cancel()
        self.num_late += is_late
        if is_timed:
            await self._until_free()
            self._pair.forget()
            if not is_late:
                self.freeing_seconds.append(time.perf_counter() - aborted)

    async def _until_free(self) -> None:
        """Return when no tier of any node holds anything of a request; fails after a minute."""
        async with asyncio.timeout(60):
            while not await self._is_free():
                pass

    async def _is_free(self) -> bool:
        are_idle = [await node.ask(partial(_is_idle, node)) for node in self._nodes]
        return all(are_idle) and self._has_passed_all()

    def _has_passed_all(self) -> bool:
        """Return whether nothing is on its way: credit of arrivals, frames to be sent, lent memory, streams."""
        pair, prefiller = self._pair, self._pair.prefill_side.prefiller
        held = pair.generator.budget.num_bytes, prefiller._budget.num_bytes
        return not (any(held) or pair.lender._lent or pair.lender._offers or prefiller.streams._running)

    def _request(self, prompt: Sequence[int], name: str) -> Request:
        params = replace(GREEDY, max_tokens=_NUM_TOKENS)
        if self._neighbour is not None:
            return pulling_request(prompt, params=params, request_id=name, cache_salt=name)
        return request_of(prompt, params, request_id=name, cache_salt=name)


def _is_idle(node: Node) -> bool:
    """Return whether the engine holds no block for a request, on its device or in host memory. In its thread."""
    scheduler = node.engine.scheduler
    if scheduler.waiting or scheduler.running or scheduler.receiving:
        return False
    scheduler.check_integrity()
    return scheduler.pool.num_available == scheduler.pool.num_blocks


@pytest.mark.parametrize("transport", [*LENT_BYTES, "pull"])
def test_an_abort_frees_every_tier(transport: str, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of all nodes, host memory, lent memory and credit; what runs beside goes on."""
    caplog.set_level("CRITICAL")
    done: list[Aborts] = []

    async def client(pair: Pair, neighbour: Neighbour | None = None) -> None:
        aborts = Aborts(pair, neighbour, random.Random(f"{SEED} {transport}"))
        await aborts.run(NUM_ABORTS // 4)
        done.append(aborts)

    run = with_neighbour if transport == "pull" else partial(with_pair, transport=transport)
    run(client, shared_memory_bytes=LENT_BYTES.get(transport, 0), timeout_seconds=60 + NUM_ABORTS)

    (aborts,) = done
    seconds = aborts.freeing_seconds
    p50, p99 = quantile(seconds, 0.5), quantile(seconds, 0.99)
    print(
        f"\n{transport}: {len(seconds)} aborts ({aborts.num_late} more came late), all freed after {1000 * p50:.1f} ms"
    )
    print(f"(median), {1000 * p99:.1f} ms (p99), {1000 * max(seconds):.1f} ms (longest)")
    if OUT:
        path = Path(OUT)
        document = described_run(path, {"seed": SEED, "num_tokens": _NUM_TOKENS})
        document.setdefault("transports", {})[transport] = [round(each, 5) for each in seconds]
        path.write_text(json.dumps(document, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    if RUNS_ALL:
        assert p99 <= MOST_FREEING_SECONDS
