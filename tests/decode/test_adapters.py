"""Adapters between nodes: equal in name and content, or not together."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest

from baton.engine.runners.mock import MockRunner
from baton.kv.hashing import Adapter, adapted_revision
from baton.rpc.status import error_info
from decode.neighbour import NEIGHBOUR_ID, Neighbour, pulling_request, with_neighbour
from decode.pair import TIMEOUT_SECONDS, Pair, generate, request_of, with_pair
from engine.rig import INFO, LAYOUT, expected_tokens, mock_runner, prompt_of

PROMPT = prompt_of(43)
EXPECTED = expected_tokens(PROMPT, 8)
NUM_FULL_TOKENS = 40


def runner_with(**digests: str) -> MockRunner:
    """Return a runner that has adapters, each of a digest of one digit."""
    adapters = tuple(Adapter(name, digit * 32) for name, digit in digests.items())
    return mock_runner(info=replace(INFO, adapters=adapters))


def test_the_prefill_node_computes_with_the_adapter_that_it_is_told() -> None:
    """Name and revision go with the request; a second one finds both caches filled, one without an adapter neither."""

    async def client(pair: Pair) -> None:
        first = await generate(pair, request_of(PROMPT, request_id="first", adapter="mine"))
        again = await generate(pair, request_of(PROMPT, request_id="again", adapter="mine"))
        plain = await generate(pair, request_of(PROMPT, request_id="plain"))

        assert first.token_ids == again.token_ids == plain.token_ids == EXPECTED
        cached = [each.summary.decode_cached_token_count for each in (first, again, plain)]
        assert cached == [0, NUM_FULL_TOKENS, 0]
        assert [each.summary.fallback_reason for each in (first, again, plain)] == ["", "", ""]
        asked = pair.servicer.requests
        revision = adapted_revision(LAYOUT.model_revision_digest, "1" * 32)
        assert [request.adapter for request in asked] == ["mine", "mine", ""]
        assert asked[0].expected_layout.model_revision_digest == revision

    with_pair(client, prefill_runner=runner_with(mine="1"), decode_runner=runner_with(mine="1"))


@pytest.mark.parametrize(
    ("digests", "reason"),
    [({}, "MODEL_MISMATCH:adapter"), ({"mine": "2"}, "KV_LAYOUT_MISMATCH:model_revision_digest")],
)
def test_kv_of_another_adapter_or_of_none_is_not_taken(digests: dict[str, str], reason: str) -> None:
    """The prefill node refuses by the name of the field; the decode node computes the prompt."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(PROMPT, adapter="mine"))

        assert answer.token_ids == EXPECTED
        assert answer.summary.fallback_reason == reason

    with_pair(client, prefill_runner=runner_with(**digests), decode_runner=runner_with(mine="1"))


def test_a_decode_node_refuses_an_adapter_that_it_lacks_or_has_otherwise() -> None:
    """As it refuses another model: the request goes to another node."""

    async def client(pair: Pair) -> None:
        revision = adapted_revision(LAYOUT.model_revision_digest, "2" * 32)
        unknown = request_of(PROMPT, adapter="other")
        changed = request_of(PROMPT, adapter="mine", model_revision_digest=revision)
        for request, field in ((unknown, "adapter"), (changed, "model_revision_digest")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await pair.stub.Generate(request, timeout=TIMEOUT_SECONDS).read()
            info = error_info(caught.value)
            assert info is not None
            assert (info.reason, info.metadata["field"]) == ("MODEL_MISMATCH", field)

    with_pair(client, decode_runner=runner_with(mine="1"))


def test_blocks_are_pulled_by_adapter() -> None:
    """A neighbour that has computed the prompt without an adapter, or with another, has nothing for it."""

    async def client(pair: Pair, neighbour: Neighbour) -> None:
        await neighbour.warm(PROMPT)
        await neighbour.warm(PROMPT, adapter="other")
        cold = await generate(pair, pulling_request(PROMPT, request_id="cold", adapter="mine"))
        pool = pair.decode.engine.scheduler.pool
        await pair.decode.ask(lambda: pool.forget(range(pool.num_blocks)))
        await neighbour.warm(PROMPT, adapter="mine")
        warm = await generate(pair, pulling_request(PROMPT, request_id="warm", adapter="mine"))

        assert cold.token_ids == warm.token_ids == EXPECTED
        assert [each.summary.pulled_token_count for each in (cold, warm)] == [0, NUM_FULL_TOKENS]
        assert warm.summary.pull_node_id == NEIGHBOUR_ID

    both = {"mine": "1", "other": "2"}
    with_neighbour(client, decode_runner=runner_with(**both), neighbour_runner=runner_with(**both))
