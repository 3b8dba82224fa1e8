"""KV that arrives is bounded over all streams of a node, and every stream gets on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from baton.capacity.prefix_reuse import MAX_FRAME_BYTES
from baton.decode.kv_stream.receive_budget import FrameShape, ReceiveBudget, receive_bytes_for
from decode.pair import Pair, generate, request_of, usual_budget, with_pair
from engine.rig import LAYOUT, prompt_of

FRAME = 1000


def budget_of(num_frames: int) -> ReceiveBudget:
    """Return a budget with credit for so many frames."""
    budget = ReceiveBudget(1, 1)
    budget.max_bytes = num_frames * FRAME
    return budget


async def turns() -> None:
    """Let every task go on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_frames_wait_for_credit_in_turn() -> None:
    """A small one does not overtake a large one for ever."""

    async def run() -> None:
        budget, done = budget_of(2), list[str]()

        async def take(name: str, num_bytes: int) -> None:
            await budget.take(num_bytes)
            done.append(name)

        tasks = [asyncio.create_task(take(*each)) for each in (("a", FRAME), ("b", 2 * FRAME), ("c", FRAME))]
        await turns()
        assert done == ["a"]

        budget.give_back(FRAME)
        await turns()
        assert done == ["a", "b"]

        budget.give_back(2 * FRAME)
        await asyncio.gather(*tasks)
        assert (done, budget.num_bytes) == (["a", "b", "c"], FRAME)

    asyncio.run(run())


@pytest.mark.parametrize("is_granted", [False, True])
@pytest.mark.parametrize("goes_first", [False, True])
def test_who_goes_while_it_waits_for_credit_takes_none_and_gives_none(is_granted: bool, goes_first: bool) -> None:
    """Also where it is granted in the very moment, before it goes or after; those behind it get their turns."""

    async def run() -> None:
        budget = budget_of(2)
        await budget.take(FRAME)
        gone, behind = asyncio.create_task(budget.take(2 * FRAME)), asyncio.create_task(budget.take(FRAME))
        await turns()
        if goes_first:
            gone.cancel()
        if is_granted:
            budget.give_back(FRAME)
        gone.cancel()
        await turns()

        assert gone.cancelled()
        assert behind.done()
        assert budget.num_bytes == FRAME * (1 if is_granted else 2)

    asyncio.run(run())


def test_a_frame_larger_than_all_credit_lands_alone() -> None:
    """It could never land otherwise."""

    async def run() -> None:
        budget = budget_of(1)
        await budget.take(5 * FRAME)
        second = asyncio.create_task(budget.take(1))
        await turns()
        assert not second.done()

        budget.give_back(5 * FRAME)
        await second

        assert budget.num_bytes == 1

    asyncio.run(run())


def test_whoever_gives_up_keeps_nobody_waiting() -> None:
    """Cancelled while it waits, or in the moment in which its turn has come."""

    async def run() -> None:
        budget = budget_of(1)
        await budget.take(FRAME)
        first, second = asyncio.create_task(budget.take(FRAME)), asyncio.create_task(budget.take(FRAME))
        await turns()
        first.cancel()
        await turns()
        budget.give_back(FRAME)
        second.cancel()  # its turn has come, and it has not run since
        await asyncio.wait({first, second})

        assert budget.num_bytes == 0
        await budget.take(FRAME)

    asyncio.run(run())


@pytest.mark.parametrize("num_streams", [1, 64])
def test_frames_are_as_large_as_their_number_allows(num_streams: int) -> None:
    """Half of the memory is for four of each stream; on a large machine nothing is asked for."""
    budget = ReceiveBudget(100 << 20, num_streams)
    wanted = FrameShape(layers_per_frame=8, chunk_tokens=0)

    assert budget.frame_bytes == min(MAX_FRAME_BYTES, (50 << 20) // num_streams // 4)
    assert budget.max_bytes + budget.idle_bytes + (50 << 20) == 100 << 20
    assert usual_budget().frames_of(LAYOUT, wanted) == wanted


def test_small_frames_have_fewer_layers_then_fewer_positions() -> None:
    """As senders group them: layers of 512 positions at least, or of a chunk."""
    token_bytes = LAYOUT.layers[0].num_token_elements * LAYOUT.dtype.num_bytes
    budget = ReceiveBudget(receive_bytes_for(4, 128 << 10), 4)
    shape = budget.frames_of(LAYOUT, FrameShape(LAYOUT.num_layers, 100_000))

    assert budget.frame_bytes == 128 << 10
    assert shape.chunk_tokens * token_bytes <= 128 << 10
    assert 1 <= shape.layers_per_frame <= LAYOUT.num_layers


@pytest.mark.parametrize("wanted_tokens", [0, 10**6])
def test_where_any_number_of_positions_is_wanted_as_many_are_as_fit_into_a_frame(wanted_tokens: int) -> None:
    """A sender that may choose would fill frames that this node has no room for."""
    budget = ReceiveBudget(receive_bytes_for(4, 128 << 10), 4)
    token_bytes = max(spec.num_token_elements for spec in LAYOUT.layers) * LAYOUT.dtype.num_bytes

    shape = budget.frames_of(LAYOUT, FrameShape(LAYOUT.num_layers, wanted_tokens))

    assert shape.chunk_tokens == (128 << 10) // token_bytes
    assert budget.frames_of(LAYOUT, FrameShape(LAYOUT.num_layers, 7)).chunk_tokens == 7


def test_a_node_whose_engine_stands_still_leaves_the_machine_its_last_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own budget may be larger: nodes beside it, and others, have used what it was made of."""
    frame_bytes = 64 << 10
    monkeypatch.setattr("baton.decode.kv_stream.receive_budget._LOOK_SECONDS", 0.0)

    async def run() -> None:
        is_short = [False]
        budget = ReceiveBudget(receive_bytes_for(64, 16 << 20), 64, lambda: is_short[0])
        budget.frame_bytes = frame_bytes
        for _ in range(8):
            assert not await budget.take(frame_bytes)
        is_short[0] = True
        late = asyncio.create_task(budget.take(frame_bytes))
        await turns()
        assert not late.done()

        budget.give_back(5 * frame_bytes)  # four frames have credit whatever is left: the node gets on
        assert await late

        assert budget.num_bytes == 4 * frame_bytes

    asyncio.run(run())


@pytest.mark.parametrize("transport", ["grpc", "fast"])
def test_a_held_engine_stops_the_streams_where_memory_is_short(transport: str) -> None:
    """What has come waits at the senders, and lands once the engine goes on."""

    async def client(pair: Pair) -> None:
        goes_on, runner = threading.Event(), pair.decode.runner
        write_kv, looked = runner.write_kv, asyncio.Event()

        def judge() -> bool:
            looked.set()
            return True

        budget = pair.generator.budget = ReceiveBudget(receive_bytes_for(64, 16 << 20), 64, judge)
        budget.frame_bytes = LAYOUT.num_token_bytes() * 4

        def held(*arguments: Any) -> None:
            assert goes_on.wait(60)
            write_kv(*arguments)

        runner.write_kv = held  # type: ignore[method-assign]
        answers = [
            asyncio.create_task(generate(pair, request_of(prompt_of(41, seed=index), request_id=f"r{index}")))
            for index in range(10)
        ]
        async with asyncio.timeout(60):
            await looked.wait()
        await turns()
        assert 0 < budget.num_bytes <= 4 * budget.frame_bytes

        goes_on.set()
        for answer in answers:
            assert not (await answer).summary.fallback_reason

    with_pair(client, transport=transport)  # type: ignore[arg-type]


@pytest.mark.parametrize("transport", ["grpc", "fast"])
def test_streams_share_what_a_node_has_for_them(transport: str) -> None:
    """Ten prompts with credit for less than two frames: all are answered, and nothing is held in the end."""
    token_bytes = LAYOUT.num_token_bytes()

    async def client(pair: Pair) -> None:
        budget = pair.generator.budget
        budget.max_bytes = 20 * token_bytes // LAYOUT.num_layers
        answers = await asyncio.gather(
            *(generate(pair, request_of(prompt_of(41, seed=index), request_id=f"r{index}")) for index in range(10))
        )

        assert all(not answer.summary.fallback_reason for answer in answers)
        await pair.settle()
        assert budget.num_bytes == 0

    with_pair(client, transport=transport)  # type: ignore[arg-type]


def test_frames_are_no_smaller_than_what_their_headers_are_worth() -> None:
    """However many streams there may be."""
    assert ReceiveBudget(1 << 20, 256).frame_bytes == 64 * 1024
