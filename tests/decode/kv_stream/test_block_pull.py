"""A decode node takes the beginning of a prompt from its neighbour's prefix cache, and computes the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

import baton.node.block_servicer
from baton.decode.kv_stream.reader import Timeouts
from baton.engine.request import SamplingParams
from baton.engine.runners.base import LayerKv
from baton.engine.runners.mock import MockRunner
from baton.internal.v1 import block_service_pb2
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from baton.kv.kv_format import KvDtype, WireFormat, token_bytes
from baton.rpc.status import error_info
from baton.telemetry import names
from baton.wire.kv import dtype_to_proto, layout_to_proto
from checkpoints import checkpoint, reference_generate
from decode.neighbour import NEIGHBOUR_ID, Neighbour, pulling_request, with_neighbour
from decode.pair import (
    PATIENT,
    TIMEOUT_SECONDS,
    Answer,
    Damage,
    Pair,
    Responses,
    generate,
    other_layout,
    request_of,
    silent_until_the_deadline,
)
from decode.test_generation import (
    doubled,
    dropped,
    flipped,
    silent_after_the_layout,
    with_an_empty_message,
    with_other_layout,
    with_wrong_total,
    without_layout,
    without_summary,
)
from engine.rig import INFO, LAYOUT, expected_tokens, mock_runner, prompt_of
from exactness.loading import Framework, load_runner

PROMPT = prompt_of(43)
EXPECTED = expected_tokens(PROMPT, 8)
BLOCK_TOKENS = 4
NUM_BLOCKS = 10
"""Full blocks of the prompt without its last position."""


def pull_of(prompt: tuple[int, ...], **fields: Any) -> block_service_pb2.PullBlocksRequest:
    """Return a good request for all full blocks of a prompt, but for some fields."""
    root = root_hash(LAYOUT.model_revision_digest, BLOCK_TOKENS)
    good: dict[str, Any] = {
        "request_id": "pull",
        "attempt": 1,
        "block_hashes": join_hashes(block_hashes(root, prompt, BLOCK_TOKENS)),
        "block_token_count": BLOCK_TOKENS,
        "expected_layout": layout_to_proto(LAYOUT),
    }
    return block_service_pb2.PullBlocksRequest(**{**good, **fields})


def wider_cache() -> MockRunner:
    """Return a runner whose blocks have the same hashes and other numbers."""
    return mock_runner(info=replace(INFO, layout=replace(LAYOUT, dtype=KvDtype.FLOAT32)))


def test_the_neighbours_blocks_are_taken_and_the_rest_is_computed() -> None:
    """The tokens are those of the prompt, and the summary says how much came from where."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)

        answer = await generate(pair, pulling_request(PROMPT))

        summary = answer.summary
        assert answer.token_ids == EXPECTED
        assert (summary.pull_node_id, summary.pulled_token_count) == (NEIGHBOUR_ID, NUM_BLOCKS * BLOCK_TOKENS)
        assert (summary.decode_cached_token_count, list(summary.kv_break_reasons)) == (0, [])
        assert summary.kv_byte_count == NUM_BLOCKS * BLOCK_TOKENS * LAYOUT.num_token_bytes()
        assert summary.fallback_reason == ""

    with_neighbour(client)


def test_the_tokens_come_from_the_bytes_that_were_sent() -> None:
    """A neighbour that hands out other KV under the hashes makes other tokens: nothing was computed anew."""

    class Lying(MockRunner):
        def read_kv(self, block_table: Any, layer: int, start: int, num_tokens: int) -> LayerKv:
            """Give the first block in place of each."""
            return super().read_kv([block_table[0]] * len(block_table), layer, start, num_tokens)

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)

        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.summary.pulled_token_count == NUM_BLOCKS * BLOCK_TOKENS
        assert answer.token_ids != EXPECTED

    with_neighbour(client, neighbour_runner=mock_runner(kind=Lying))


def test_pulled_blocks_are_cached_here_and_not_asked_for_again() -> None:
    """The second request begins where the node's own cache ends, and asks nobody if that is the end."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        await generate(pair, pulling_request(PROMPT, 6))

        again = await generate(pair, pulling_request(PROMPT, 6, request_id="again"))
        longer = await generate(pair, pulling_request(PROMPT, request_id="longer", bypass_prefix_cache=False))

        assert [again.token_ids, longer.token_ids] == [EXPECTED, EXPECTED]
        assert again.summary.pulled_token_count == 0
        assert [request.block_begin for request in neighbour.servicer.requests] == [0]
        assert longer.summary.decode_cached_token_count == NUM_BLOCKS * BLOCK_TOKENS

    with_neighbour(client)


def test_only_the_blocks_that_are_not_here_travel() -> None:
    """The stream begins behind the node's own cached prefix."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        await generate(pair, request_of(PROMPT[:13], prefill_node_id=""))

        answer = await generate(pair, pulling_request(PROMPT, request_id="longer"))

        assert answer.token_ids == EXPECTED
        assert [request.block_begin for request in neighbour.servicer.requests] == [3]
        assert (answer.summary.decode_cached_token_count, answer.summary.pulled_token_count) == (12, 28)

    with_neighbour(client)


def test_what_the_neighbour_lacks_is_computed() -> None:
    """It answers how many leading blocks it has; those of another prompt or another salt are none."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT[:25])
        await neighbour.warm(prompt_of(43, seed=9), attempt=2)

        part = await generate(pair, pulling_request(PROMPT, cache_salt=""))
        other = await generate(pair, pulling_request(PROMPT, cache_salt="another", request_id="salted"))

        assert [part.token_ids, other.token_ids] == [EXPECTED, EXPECTED]
        assert [answer.summary.pulled_token_count for answer in (part, other)] == [24, 0]
        assert [list(answer.summary.kv_break_reasons) for answer in (part, other)] == [[], []]

    with_neighbour(client)


@pytest.mark.parametrize(("keys", "values"), [(KvDtype.INT8, KvDtype.INT8), (KvDtype.FLOAT16, KvDtype.FP8)])
def test_blocks_travel_in_the_format_that_the_placement_names(keys: KvDtype, values: KvDtype) -> None:
    """With the bytes of it, scales counted; a mock loses nothing by it."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        wire = {"wire_dtype": dtype_to_proto(keys), "value_wire_dtype": dtype_to_proto(values)}

        answer = await generate(pair, pulling_request(PROMPT, pull=wire))

        assert answer.token_ids == EXPECTED
        assert answer.summary.key_wire_dtype == dtype_to_proto(keys)
        num_bytes = sum(token_bytes(LAYOUT, WireFormat(keys, values)))
        assert answer.summary.kv_byte_count == NUM_BLOCKS * BLOCK_TOKENS * num_bytes

    with_neighbour(client)


def test_what_the_neighbour_has_in_host_memory_is_taken_as_it_is() -> None:
    """Its device is not asked; the tokens are those of the prompt."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        await neighbour.move_to_host()

        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.token_ids == EXPECTED
        assert answer.summary.pulled_token_count == NUM_BLOCKS * BLOCK_TOKENS
        assert list(answer.summary.kv_break_reasons) == []
        assert not await neighbour.node.ask(lambda: neighbour.node.engine.scheduler.pool.hashes)

    with_neighbour(client)


def pulled_while(
    act: Callable[[Neighbour], Awaitable[None]], num_frames: int, monkeypatch: pytest.MonkeyPatch
) -> Answer:
    """Return the answer to a request whose blocks are pulled while something happens to them after some frames."""
    monkeypatch.setattr(baton.node.block_servicer, "FRAME_TOKENS", 8)
    monkeypatch.setattr(baton.node.block_servicer, "FRAMES_AHEAD", 1)
    neighbours, answers = list[Neighbour](), list[Answer]()

    async def acting(responses: Responses) -> Responses:
        seen = 0
        async for response in responses:
            yield response
            seen += 1
            if seen == num_frames + 1:
                await act(neighbours[0])

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        neighbours.append(neighbour)
        await neighbour.warm(PROMPT)
        answers.append(await generate(pair, pulling_request(PROMPT, pull={"layers_per_frame": 1})))

    with_neighbour(client, damage=acting)
    return answers[0]


@pytest.mark.parametrize("num_frames", [0, 1, 4])
def test_blocks_that_move_to_host_memory_meanwhile_are_sent_all_the_same(
    num_frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody notices."""
    answer = pulled_while(Neighbour.move_to_host, num_frames, monkeypatch)

    assert answer.token_ids == EXPECTED
    assert list(answer.summary.kv_break_reasons) == []
    assert answer.summary.pulled_token_count == NUM_BLOCKS * BLOCK_TOKENS


@pytest.mark.parametrize("num_frames", [0, 1, 4, 7])
def test_blocks_that_leave_the_cache_meanwhile_are_computed(num_frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come in every layer is kept; the neighbour says what happened."""
    answer = pulled_while(Neighbour.forget, num_frames, monkeypatch)

    assert answer.token_ids == EXPECTED
    assert list(answer.summary.kv_break_reasons) == ["BLOCKS_EVICTED"]
    assert answer.summary.pulled_token_count == num_frames // 3 * 8


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flipped, "KV_STREAM_BROKEN"),
        (doubled, "KV_STREAM_BROKEN"),
        (dropped, "KV_STREAM_BROKEN"),
        (without_summary, "KV_STREAM_BROKEN"),
        (with_wrong_total, "KV_STREAM_BROKEN"),
        (without_layout, "KV_STREAM_BROKEN"),
        (with_an_empty_message, "KV_STREAM_BROKEN"),
        (with_other_layout, "KV_LAYOUT_MISMATCH:layers[1].kv_head_count"),
        (silent_after_the_layout, "KV_STREAM_BROKEN"),
    ],
)
def test_no_damage_makes_a_wrong_token(damage: Damage, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is computed here, and the summary says why."""
    monkeypatch.setattr(baton.node.block_servicer, "FRAME_TOKENS", 8)

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)

        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == [reason]

    patience = Timeouts(30.0, 0.2) if damage is silent_after_the_layout else PATIENT
    with_neighbour(client, damage=damage, timeouts=patience)


@pytest.mark.parametrize("num_blocks", [-1, NUM_BLOCKS + 1, 2**31 - 1])
def test_of_a_node_that_promises_other_blocks_than_were_asked_for_nothing_is_taken(num_blocks: int) -> None:
    """What it sends beyond them would land in blocks of others."""

    async def lying(responses: Responses) -> Responses:
        async for response in responses:
            if response.HasField("layout"):
                response.block_count = num_blocks  # type: ignore[attr-defined]
            yield response

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)

        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == ["KV_STREAM_BROKEN"]
        assert (answer.summary.pulled_token_count, answer.summary.kv_frame_count) == (0, 0)

    with_neighbour(client, damage=lying, timeouts=PATIENT)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"neighbour_runner": other_layout}, "KV_LAYOUT_MISMATCH:model_revision_digest"),
        ({"neighbour_runner": lambda: mock_runner(block_tokens=8)}, "KV_LAYOUT_MISMATCH:block_token_count"),
        ({"neighbour_runner": wider_cache}, "KV_LAYOUT_MISMATCH:dtype"),
    ],
)
def test_a_node_with_another_cache_refuses_by_the_name_of_the_field(parts: dict[str, Any], reason: str) -> None:
    """And the prompt is computed."""

    async def client(pair: Pair, _neighbour: Neighbour) -> None:
        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == [reason]

    with_neighbour(client, **{name: make() for name, make in parts.items()})


def test_a_node_that_the_router_has_not_named_is_not_called() -> None:
    """The prompt is computed."""

    async def client(pair: Pair, _neighbour: Neighbour) -> None:
        answer = await generate(pair, pulling_request(PROMPT, pull={"node_id": "stranger"}))

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == ["NODE_NOT_FOUND"]

    with_neighbour(client)


def test_nothing_is_pulled_where_the_whole_prompt_must_be_computed() -> None:
    """For a request that bypasses caches, and one that wants log-probabilities of its prompt."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        scored = SamplingParams(temperature=0.0, max_tokens=8, num_prompt_logprobs=0)

        bypassing = await generate(pair, pulling_request(PROMPT, bypass_prefix_cache=True))
        judged = await pair.stub.Generate(pulling_request(PROMPT, params=scored, request_id="judged")).read()

        assert bypassing.token_ids == EXPECTED
        assert judged is not grpc.aio.EOF
        assert neighbour.servicer.requests == []

    with_neighbour(client)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"node_id": ""}, "placement.prefix_pull.node_id"),
        ({"block_count": 0}, "placement.prefix_pull.block_count"),
        ({"block_count": -1}, "placement.prefix_pull.block_count"),
        ({"wire_dtype": 99}, "wire_dtype"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(fields: dict[str, Any], field: str) -> None:
    """By the name of the field, before anything is asked for."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(pair, pulling_request(PROMPT, pull=fields))

        info = error_info(caught.value)
        assert info is not None
        assert info.metadata["field"] == field
        assert neighbour.servicer.requests == []

    with_neighbour(client)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"block_hashes": b"short"}, "block_hashes"),
        ({"block_hashes": b""}, "block_hashes"),
        ({"block_begin": -1}, "block_begin"),
        ({"block_begin": INFO.max_context_tokens}, "block_begin"),
        ({"layers_per_frame": -1}, "layers_per_frame"),
        ({"request_id": ""}, "request_id"),
        ({"wire_dtype": 99}, "wire_dtype"),
        ({"block_token_count": 16}, "block_token_count"),
        ({"expected_layout": layout_to_proto(replace(LAYOUT, dtype=KvDtype.BFLOAT16))}, "dtype"),
    ],
)
def test_a_bad_pull_is_refused_by_the_name_of_the_field(fields: dict[str, Any], field: str) -> None:
    """Whoever asks."""

    async def client(_pair: Pair, neighbour: Neighbour) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await neighbour.blocks.PullBlocks(pull_of(PROMPT, **fields), timeout=10).read()

        info = error_info(caught.value)
        assert info is not None
        assert info.metadata["field"] == field

    with_neighbour(client)


@pytest.mark.parametrize(("server", "taker"), [("torch", "mlx"), ("mlx", "torch"), ("torch", "torch"), ("mlx", "mlx")])
def test_a_node_of_any_engine_serves_one_of_any(server: Framework, taker: Framework) -> None:
    """The tokens are those of transformers."""
    if "mlx" in (server, taker):
        pytest.importorskip("mlx.core")
    folder = checkpoint("llama")
    prompt = [3 + position * 7 % 500 for position in range(53)]

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(prompt, model_id="tiny")

        answer = await generate(pair, pulling_request(prompt, model_id="tiny"))

        assert answer.summary.pulled_token_count == 48
        assert answer.token_ids == reference_generate(folder, prompt, 8)[: len(answer.token_ids)]

    with_neighbour(
        client,
        neighbour_runner=load_runner(server, folder),
        decode_runner=load_runner(taker, folder),
        timeout_seconds=60.0,
    )


def test_a_neighbour_that_is_gone_costs_no_request() -> None:
    """It died before it was asked, or while it sends; its process says nothing more."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        await neighbour.server.drain(0)

        answer = await generate(pair, pulling_request(PROMPT))

        assert answer.token_ids == EXPECTED
        assert (answer.summary.pulled_token_count, len(answer.summary.kv_break_reasons)) == (0, 1)

    with_neighbour(client)


def test_a_neighbour_that_dies_while_it_sends_costs_what_it_has_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come in every layer is kept."""
    monkeypatch.setattr(baton.node.block_servicer, "FRAME_TOKENS", 8)

    async def dying(responses: Responses) -> Responses:
        seen = 0
        async for response in responses:
            yield response
            seen += 1
            if seen == 5:  # the layout, and four frames of three layers each
                raise RuntimeError("the process dies")

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)

        answer = await generate(pair, pulling_request(PROMPT, pull={"layers_per_frame": 1}))

        assert answer.token_ids == EXPECTED
        assert answer.summary.pulled_token_count == 8
        assert len(answer.summary.kv_break_reasons) == 1

    with_neighbour(client, damage=dying)


def test_a_stalled_pull_is_given_up_while_there_is_time_to_compute() -> None:
    """The request's deadline holds, with the right tokens, however long a frame may be waited for."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        request = pulling_request(PROMPT)
        request.timeout.FromSeconds(int(TIMEOUT_SECONDS))

        answer = await generate(pair, request)

        assert answer.token_ids == EXPECTED
        assert list(answer.summary.kv_break_reasons) == ["DEADLINE"]

    patience = Timeouts(3 * TIMEOUT_SECONDS, 3 * TIMEOUT_SECONDS)
    damage = silent_until_the_deadline(num_responses=1)
    with_neighbour(client, damage=damage, timeouts=patience, timeout_seconds=2 * TIMEOUT_SECONDS)


def test_a_pull_is_counted_by_what_came_of_it() -> None:
    """Streams by outcome, tokens, bytes; the time is no part of the computation's."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        answer = await generate(pair, pulling_request(PROMPT))
        await generate(pair, pulling_request(PROMPT, pull={"node_id": "stranger"}, request_id="2", cache_salt="s"))

        num_bytes = NUM_BLOCKS * BLOCK_TOKENS * LAYOUT.num_token_bytes()
        counted = pair.metrics.counted
        assert counted[names.PULLS] == [(1, "COMPLETE"), (1, "NODE_NOT_FOUND")]
        assert counted[names.PULLED_PROMPT_TOKENS] == [(NUM_BLOCKS * BLOCK_TOKENS,), (0,)]
        assert counted[names.PULLED_BYTES] == [(num_bytes, "grpc"), (0, "grpc")]
        assert answer.summary.pull_duration.nanos > 0
        assert answer.finished.usage.cached_token_count == NUM_BLOCKS * BLOCK_TOKENS

    with_neighbour(client)
