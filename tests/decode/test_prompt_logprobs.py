"""Log-probabilities of prompts, over real channels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton.internal.v1 import decode_service_pb2
from decode.pair import TIMEOUT_SECONDS, Pair, generate, request_of, with_pair
from engine.rig import GREEDY, expected_tokens, prompt_of

PROMPT = prompt_of(41)
SCORED = replace(GREEDY, num_prompt_logprobs=1, max_tokens=3)


@pytest.mark.parametrize("is_served", [False, True])
def test_a_prompt_is_judged_before_its_first_token(is_served: bool) -> None:
    """Chunk by chunk, every position once, also of a prompt that is in the prefix cache; in both kinds of call."""

    async def client(pair: Pair) -> None:
        await generate(pair, request_of(PROMPT, prefill_node_id=""))
        request = request_of(PROMPT, SCORED, prefill_node_id="", request_id="scored")
        judged: list[Any] = []
        async for chunk in (_served_prompt if is_served else _prompt_of)(pair, request):
            assert chunk.position == len(judged) + 1
            judged += chunk.logprobs

        assert [entry.token_id for entry in judged] == list(PROMPT[1:])
        for position, entry in enumerate(judged):
            (best,) = expected_tokens(PROMPT[: position + 1], 1)
            assert entry.alternatives[0].token_id == best
            assert (entry.rank == 1) == (entry.token_id == best)

    with_pair(client)


async def _prompt_of(pair: Pair, request: Any) -> AsyncIterator[Any]:
    kinds = []
    async for response in pair.stub.Generate(request, timeout=TIMEOUT_SECONDS):
        kinds.append(response.WhichOneof("element"))
        if kinds[-1] == "prompt":
            assert "tokens" not in kinds
            yield response.prompt


async def _served_prompt(pair: Pair, request: Any) -> AsyncIterator[Any]:
    call = pair.stub.Serve(timeout=TIMEOUT_SECONDS)
    await call.write(
        decode_service_pb2.ServeRequest(starts=[decode_service_pb2.StreamStart(stream_id=1, request=request)])
    )
    await call.done_writing()
    has_tokens = False
    async for response in call:
        assert not (response.prompts and has_tokens)
        has_tokens |= bool(response.token_ids)
        for part in response.prompts:
            assert part.stream_id == 1
            yield part.chunk


def test_a_prompt_that_is_to_be_judged_is_not_computed_elsewhere() -> None:
    """A placement that says so is refused: the caller has to know that the other node gives no logits."""

    async def client(pair: Pair) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await generate(pair, request_of(PROMPT, SCORED))

        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "prompt_logprobs" in str(refusal.value.details())

    with_pair(client)
