"""Conversations over gRPC: what chat completions can, and the same of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from baton.gateway.server import RunningGateway
from baton.v1 import generation_pb2 as generation
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.grpc_answer import Answer, answers
from gateway.rest import ask
from gateway.tool_models import (
    ANSWER,
    ARGUMENTS,
    CALL,
    FUNCTION,
    REASONING,
    TOOL,
    answer_with,
    tool_cluster,
    tool_folder,
)

TOOL_WIRE = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "parameters": json.dumps(FUNCTION["parameters"]),
}
TURN = {"role": "user", "content": "Zürich?"}
SAMPLING = {"max_token_count": 500, "seed": 7}
RESULTS = ("rain", "4 °C")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose template knows tools and reasoning."""
    return tool_folder(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, ANSWER, num_nodes=1)


@pytest.fixture
def stub(gateway: RunningGateway) -> Iterator[GenerationServiceStub]:
    """Return a client."""
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        yield GenerationServiceStub(channel)


def _generate(stub: GenerationServiceStub, request: dict[str, Any] | None = None, **conversation: Any) -> list[Answer]:
    """Return the choices of an answer."""
    fields = {"messages": [TURN], "tools": [TOOL_WIRE], **conversation}
    wanted = messages.GenerateRequest(**{"conversation": fields, "sampling": SAMPLING, **(request or {})})
    return answers(stub.Generate(wanted, timeout=20))


def _refusal(call: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    return call.code(), call.details().partition(":")[0]


def test_calls_text_and_reasoning_are_told_apart(stub: GenerationServiceStub) -> None:
    """Each in its field, every call with a name for its result."""
    (answer,) = _generate(stub)

    assert (answer.text, answer.reasoning) == ("Let me see.", REASONING)
    assert answer.called == [("get_weather", ARGUMENTS)] * 2
    assert len({call.id for call in answer.calls}) == 2
    assert answer.end.reason == generation.FINISH_REASON_TOOL_CALLS
    assert answer.end.usage.completion_token_count == len(answer.token_ids)
    assert answer.end.usage.reasoning_token_count > 0


def test_plain_text_is_not_read(stub: GenerationServiceStub, cluster: FakeCluster) -> None:
    """A text has no conversation whose answer could call; nor is reasoning claimed to be counted."""
    answer_with(cluster, "a { b")
    (answer,) = _generate(stub, {"text": "x"})

    assert (answer.text, answer.end.reason) == ("a { b", generation.FINISH_REASON_STOP)
    assert not answer.end.usage.HasField("reasoning_token_count")


def _rest_loop(client: openai.OpenAI, cluster: FakeCluster, script: Sequence[str]) -> list[Any]:
    """Ask, send back the answer with a result per call, and ask again, over REST."""
    turns: list[Any] = [{"role": "developer", "content": "Be brief."}, TURN]
    seen: list[Any] = []
    for text in script:
        answer_with(cluster, text)
        options: Any = {"model": MODEL, "messages": turns, "tools": [TOOL], "max_tokens": 500, "seed": 7}
        body: Any = client.chat.completions.create(**options, extra_body={"return_token_ids": True})
        message = body.choices[0].message
        calls = message.tool_calls or ()
        called = [(call.function.name, call.function.arguments) for call in calls]
        reasoning = getattr(message, "reasoning_content", None) or ""
        usage = body.usage.prompt_tokens, body.usage.completion_tokens
        told = body.choices[0].finish_reason, usage, body.choices[0].token_ids
        seen.append((message.content or "", reasoning, called, *told))
        turns.append(message.model_dump(exclude_none=True))
        results = zip(calls, RESULTS, strict=False)
        turns += [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in results]
    return seen


def _grpc_loop(stub: GenerationServiceStub, cluster: FakeCluster, script: Sequence[str]) -> list[Any]:
    """The same over gRPC."""
    turns: list[Any] = [{"role": "developer", "content": "Be brief."}, TURN]
    seen: list[Any] = []
    for text in script:
        answer_with(cluster, text)
        (answer,) = _generate(stub, messages=turns)
        reason = generation.FinishReason.Name(answer.end.reason).removeprefix("FINISH_REASON_").lower()
        usage = answer.end.usage.prompt_token_count, answer.end.usage.completion_token_count
        seen.append((answer.text, answer.reasoning, answer.called, reason, usage, answer.token_ids))
        echo = {"content": answer.text, "reasoning": answer.reasoning, "tool_calls": answer.calls}
        turns.append({"role": "assistant", **echo})
        results = zip(answer.calls, RESULTS, strict=False)
        turns += [{"role": "tool", "tool_call_id": call.id, "content": result} for call, result in results]
    return seen


def test_an_agents_loop_is_the_same_over_both_apis(
    stub: GenerationServiceStub, client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """Call, result, call, result, answer: nodes are asked for the same, and clients told the same."""
    script = (ANSWER, f"{CALL}", "<think>\nSo.\n</think>\n\nTake an umbrella.")
    over_rest = _rest_loop(client, cluster, script)
    over_grpc = _grpc_loop(stub, cluster, script)

    assert over_grpc == over_rest
    assert [len(step[2]) for step in over_grpc] == [2, 1, 0]
    requests = cluster.decodes[0].requests
    asked = [(list(request.prompt_token_ids), request.sampling) for request in requests]
    assert asked[:3] == asked[3:]
    assert len(asked[2][0]) > len(asked[1][0]) > len(asked[0][0])


@pytest.mark.parametrize(
    ("choice", "over_rest"),
    [
        ({}, "auto"),
        ({"mode": "TOOL_MODE_NONE"}, "none"),
        ({"mode": "TOOL_MODE_REQUIRED"}, "required"),
        ({"name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}}),
    ],
)
@pytest.mark.parametrize("is_parallel", [None, False])
def test_nodes_are_asked_for_the_same_whichever_api_chooses_a_tool(
    stub: GenerationServiceStub,
    gateway: RunningGateway,
    cluster: FakeCluster,
    choice: dict[str, Any],
    over_rest: Any,
    is_parallel: bool | None,
) -> None:
    """The same prompt and the same grammar."""
    (answer,) = _generate(stub, tool_choice=choice, parallel_tool_calls=is_parallel)
    body = {"model": MODEL, "messages": [TURN], "tools": [TOOL], "tool_choice": over_rest, "max_tokens": 500, "seed": 7}
    reply = ask(gateway, "/v1/chat/completions", {**body, "parallel_tool_calls": is_parallel})

    ours, theirs = cluster.decodes[0].requests
    assert (ours.prompt_token_ids, ours.sampling) == (theirs.prompt_token_ids, theirs.sampling)
    calls = reply.body["choices"][0]["message"].get("tool_calls", [])
    assert answer.called == [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def test_templates_get_their_arguments(stub: GenerationServiceStub, cluster: FakeCluster) -> None:
    """Those that this one knows; an effort that it does not know is left out, and the answer says so."""
    answer_with(cluster, f"{REASONING}\n</think>\n\nFine.")
    thinking = {"template_arguments": '{"enable_thinking": true}', "reasoning_effort": "low"}
    (answer,) = _generate(stub, **thinking)

    assert (answer.text, answer.reasoning) == ("Fine.", REASONING)
    assert list(answer.end.ignored_fields) == ["conversation.reasoning_effort"]


def test_choices_are_those_of_rest(stub: GenerationServiceStub, gateway: RunningGateway, cluster: FakeCluster) -> None:
    """As many streams in one, each with its own end; seeds follow from the first."""
    answers = _generate(stub, {"choice_count": 3})
    body = {"model": MODEL, "messages": [TURN], "tools": [TOOL], "n": 3, "max_tokens": 500, "seed": 7}
    ask(gateway, "/v1/chat/completions", body)

    assert [answer.called for answer in answers] == [[("get_weather", ARGUMENTS)] * 2] * 3
    assert all(answer.end.reason == generation.FINISH_REASON_TOOL_CALLS for answer in answers)
    seeds = [request.sampling.seed for request in cluster.decodes[0].requests]
    assert sorted(seeds[:3]) == sorted(seeds[3:])
    assert sorted(answer.end.usage.seed for answer in answers) == sorted(seeds[:3])


def test_tokens_are_told_with_their_text(stub: GenerationServiceStub, gateway: RunningGateway) -> None:
    """As REST tells them, half characters as bytes."""
    (answer,) = _generate(stub, {"sampling": {**SAMPLING, "top_logprob_count": 0}}, tools=[])
    body = {"model": MODEL, "messages": [TURN], "logprobs": True, "max_tokens": 500}
    told = ask(gateway, "/v1/chat/completions", body).body["choices"][0]["logprobs"]["content"]

    ours = [(entry.text, list(entry.token_bytes)) for entry in answer.logprobs]
    assert ours == [(entry["token"], entry["bytes"]) for entry in told]
    assert any("�" in text for text, _ in ours)


def test_an_answer_says_what_stopped_it_and_whose_it_is(stub: GenerationServiceStub, cluster: FakeCluster) -> None:
    """The stop string, the name of the request, and how many nodes were tried; the text has the stop if wanted."""
    answer_with(cluster, "one two three")
    for shown, text in ((False, "one "), (True, "one two")):
        (answer,) = _generate(stub, {"stop": ["two"], "include_stop_in_text": shown}, tools=[])
        assert (answer.text, answer.end.stop, answer.end.attempt_count) == (text, "two", 1)
        assert answer.end.request_id


_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": [{"role": "robot"}]}, "messages[0].role"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
    (
        {"messages": [TURN, {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": "["}]}]},
        "messages[1].tool_calls[0].arguments",
    ),
    ({"tools": [{"name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"name": "f", "parameters": "7"}]}, "tools[0].parameters"),
    ({"tools": [{"name": "f", "parameters": '{"type": "object"'}]}, "tools[0].parameters"),
    ({"template_arguments": '{"enable_thinking": true'}, "template_arguments"),
    ({"tools": [], "tool_choice": {"mode": "TOOL_MODE_REQUIRED"}}, "tool_choice"),
    ({"tool_choice": {"name": "other"}}, "tool_choice.name"),
    ({"template_arguments": '{"colour": 1}'}, "template_arguments.colour"),
    ({"template_arguments": "[]"}, "template_arguments"),
    ({"continue_final_message": True}, "continue_final_message"),
]


@pytest.mark.parametrize("rpc", ["Generate", "Tokenize", "CountTokens"])
def test_what_is_wrong_with_a_conversation_is_named(stub: GenerationServiceStub, rpc: str) -> None:
    """By its place in the request, whatever is asked of it."""
    for conversation, field in _REFUSED:
        fields = {"messages": [TURN], "tools": [TOOL_WIRE], **conversation}
        request = getattr(messages, f"{rpc}Request")(conversation=fields)
        with pytest.raises(grpc.RpcError) as failure:
            list(stub.Generate(request, timeout=20)) if rpc == "Generate" else getattr(stub, rpc)(request, timeout=20)

        assert _refusal(failure.value) == (grpc.StatusCode.INVALID_ARGUMENT, f"conversation.{field}")


def test_texts_and_conversations_are_tokenized_as_rest_does(
    stub: GenerationServiceStub, gateway: RunningGateway
) -> None:
    """With tools; counted without being told; and back."""
    asked = {"text": "hello wörld"}, {"conversation": {"messages": [TURN], "tools": [TOOL_WIRE]}}
    bodies = {"prompt": "hello wörld"}, {"messages": [TURN], "tools": [TOOL]}
    for fields, body in zip(asked, bodies, strict=True):
        told = stub.Tokenize(messages.TokenizeRequest(**fields, include_pieces=True), timeout=20)
        count = stub.CountTokens(messages.CountTokensRequest(**fields), timeout=20)
        reply = ask(gateway, "/tokenize", {**body, "return_token_strs": True}).body

        assert (list(told.token_ids), list(told.pieces)) == (reply["tokens"], reply["token_strs"])
        assert told.max_context_token_count == count.max_context_token_count == reply["max_model_len"]
        assert count.token_count == reply["count"]
        text = stub.Detokenize(messages.DetokenizeRequest(token_ids=told.token_ids), timeout=20).text
        assert text == ask(gateway, "/detokenize", {"tokens": reply["tokens"]}).body["prompt"]


def test_a_token_that_does_not_exist_has_no_text(stub: GenerationServiceStub) -> None:
    """And the field is named."""
    with pytest.raises(grpc.RpcError) as failure:
        stub.Detokenize(messages.DetokenizeRequest(token_ids=[-1]), timeout=20)

    assert _refusal(failure.value) == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids")
