"""What a given-up stream has received is freed at once: the garbage collector comes rarely, and counts no bytes."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from baton.decode.kv_stream.prefill_stream import TransportChoice
from baton.decode.kv_stream.reader import Timeouts
from baton.internal.v1.decode_service_pb2 import ServeRequest, StreamStart
from baton.kv.stream import StagingPool
from decode.pair import TIMEOUT_SECONDS, Pair, Responses, generate, request_of, with_pair
from engine.rig import expected_tokens, prompt_of

pytestmark = pytest.mark.usefixtures("no_collector")  # what is not freed at once must show

PROMPT = prompt_of(120)
NUM_MESSAGES = 1 + 16
"""The layout, and two frames for each 16 positions: more than the engine is given before it has written some."""


class Staged:
    """Where frames, or their headers, are received; knows what of it is still held."""

    def __init__(self) -> None:
        self._given: list[weakref.ref[Any]] = []

    def give(self, num_bytes: int) -> memoryview:
        """Return memory for a message."""
        memory = np.empty(num_bytes, np.uint8)
        self._given.append(weakref.ref(memory))
        return memory.data

    @property
    def num_given(self) -> int:
        """Return the messages that have come."""
        return len(self._given)

    @property
    def num_held(self) -> int:
        """Return those whose memory somebody still sees."""
        return sum(each() is not None for each in self._given)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    """Stand in for staging memory."""
    staged = Staged()
    monkeypatch.setattr(StagingPool, "give", lambda _, num_bytes: staged.give(num_bytes))
    return staged


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a state."""
    while True:
        if is_so():
            return
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("transport", ["fast", "shared"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_what_a_cancelled_stream_has_received_is_freed(
    transport: TransportChoice, is_alone: bool, staged: Staged
) -> None:
    """What waits to be written as well as what nobody has taken yet: the engine is busy, and takes nothing."""
    gates, is_ended = list[threading.Event](), asyncio.Event()

    async def without_end(responses: Responses) -> Responses:
        gate = gates[-1]
        try:
            async for response in responses:
                if response.HasField("layout"):
                    pairs[0].decode.engine.call(lambda: gate.wait(TIMEOUT_SECONDS))
                if response.HasField("summary"):
                    await asyncio.Event().wait()
                yield response
        finally:
            is_ended.set()

    pairs: list[Pair] = []

    async def client(pair: Pair) -> None:
        pairs.append(pair)
        serve = pair.stub.Serve()
        for number in range(1, 5):
            gates.append(threading.Event())  # its own: the engine may still have to come to the one before
            is_ended.clear()
            num_given = staged.num_given
            request = pair.granted(request_of(PROMPT, request_id=f"r{number}", cache_salt=f"{number}"))
            if is_alone:
                call = pair.stub.Generate(request)
                await call.read()
            else:
                await serve.write(ServeRequest(starts=[StreamStart(stream_id=number, request=request)]))
            await until(lambda: staged.num_given >= num_given + NUM_MESSAGES)  # noqa: B023 - awaited here
            if is_alone:
                call.cancel()
            else:
                await serve.write(ServeRequest(cancelled_stream_ids=[number]))
            await is_ended.wait()
            gates[-1].set()

        await until(lambda: staged.num_held == 0)
        await until(lambda: pair.lender.num_bytes == 0)
        serve.cancel()

    with_pair(client, damage=without_end, transport=transport)


@pytest.mark.parametrize("transport", ["fast", "shared"])
@pytest.mark.parametrize("how", ["damaged", "silent"])
def test_what_a_broken_stream_has_received_is_freed_before_the_next_one_brings_anything(
    transport: TransportChoice, how: str, staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one's sender waits for that here; where there is none, the request ends so."""
    caplog.set_level(logging.CRITICAL)  # records that are kept for the test's report keep the error
    patience = Timeouts(TIMEOUT_SECONDS, frame_seconds=2.0 if how == "silent" else TIMEOUT_SECONDS)

    async def broken_once(responses: Responses) -> Responses:
        is_first = staged.num_given == 0
        if not is_first:
            await until(lambda: staged.num_held == 0)
        num_frames = 0
        async for response in responses:
            if response.HasField("frame"):
                num_frames += 1
                if is_first and num_frames == 6 and how == "silent":
                    await asyncio.Event().wait()
                if is_first and num_frames == 6:
                    response.frame.crc32c ^= 1
            yield response

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT))

        assert answer.token_ids == expected_tokens(PROMPT, 8)
        assert len(answer.summary.kv_break_reasons) == 1
        assert answer.summary.kv_resume_count == (how == "damaged")  # a silent node is not asked again
        await until(lambda: staged.num_held == 0)

    with_pair(client, damage=broken_once, transport=transport, timeouts=patience)
