"""Outputs that must have a form, over the wire: compiled on both nodes, refused by name."""

from __future__ import annotations

import re
from dataclasses import replace

import grpc
import pytest

from baton.engine.request import StructuredOutput
from baton.rpc.status import error_info
from decode.pair import PREFILL_ID, Pair, follow, generate, request_of, with_pair
from engine.rig import GREEDY, prompt_of
from engine.tokens import text_of

DIGITS = replace(GREEDY, structured_output=StructuredOutput("regex", "[0-9]{5}"))


@pytest.mark.parametrize("prefill_node_id", ["", PREFILL_ID])
def test_an_output_has_its_form_wherever_the_prompt_is_computed(prefill_node_id: str) -> None:
    """Its end is not a stop token: nothing could follow."""

    async def client(pair: Pair) -> None:
        answer = await generate(pair, request_of(prompt_of(9), DIGITS, prefill_node_id=prefill_node_id))

        assert re.fullmatch("[0-9]{5}", text_of(answer.token_ids))
        assert not answer.finished.HasField("stop_token_id")
        assert answer.summary.fallback_reason == ""

    with_pair(client)


def test_a_resumed_output_goes_on_in_its_form() -> None:
    """On both nodes the output so far is followed first."""

    async def client(pair: Pair) -> None:
        whole = (await generate(pair, request_of(prompt_of(9), DIGITS))).token_ids
        rest = await generate(
            pair, request_of(prompt_of(9), DIGITS, output_token_ids=whole[:2], attempt=2, request_id="again")
        )

        assert rest.token_ids == whole[2:]

    with_pair(client)


def test_a_form_that_cannot_be_compiled_is_refused_by_name() -> None:
    """Before anything is computed; the other requests of the node go on."""

    async def client(pair: Pair) -> None:
        wrong = replace(GREEDY, structured_output=StructuredOutput("json_schema", '{"not": {}}'))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(pair.stub.Generate(request_of(prompt_of(9), wrong), timeout=20))

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert info is not None
        assert info.metadata["field"] == "structured_output.json_schema"
        assert len((await generate(pair, request_of(prompt_of(9)))).token_ids) == 8

    with_pair(client)


@pytest.mark.parametrize("prefill_node_id", ["", PREFILL_ID])
def test_a_form_that_becomes_too_complex_is_refused_by_name(prefill_node_id: str) -> None:
    """It is the request's fault, wherever the limit was reached, and not the node's."""

    async def client(pair: Pair) -> None:
        long = replace(GREEDY, structured_output=StructuredOutput("lark", "start: " + '"a" ' * 60_000))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await follow(
                pair.stub.Generate(request_of(prompt_of(9), long, prefill_node_id=prefill_node_id), timeout=20)
            )

        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert info is not None
        assert info.metadata["field"] == "structured_output.lark"
        assert len((await generate(pair, request_of(prompt_of(9)))).token_ids) == 8

    with_pair(client)
