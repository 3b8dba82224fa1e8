"""Requests that the public gRPC API refuses, by status, reason and field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest

from baton.v1.generation_pb2 import SamplingParameters
from baton.v1.generation_service_pb2 import (
    ChatMessage,
    Conversation,
    CountTokensRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
    TokenSequence,
    Tool,
    ToolCall,
    ToolChoice,
)
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from system.bad_input.refusal import Refusal, refusal_of
from system.cluster import Cluster

pytestmark = pytest.mark.usefixtures("bystander")

_GENERATE = "/baton.v1.GenerationService/Generate"
_MANY = 10**6


@pytest.fixture(scope="module")
def channel(demo_cluster: Cluster) -> Iterator[grpc.Channel]:
    """Return a channel to the public API."""
    with grpc.insecure_channel(demo_cluster.grpc_address) as channel:
        yield channel


_DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
_LARGE = '{"type": "object", "description": "' + "a" * 70_000 + '"}'


def _asking(**fields: Any) -> Conversation:
    return Conversation(messages=[ChatMessage(role="user", content="x")], **fields)


def _calling(arguments: str) -> Conversation:
    call = ToolCall(id="c", name="f", arguments=arguments)
    return Conversation(messages=[ChatMessage(role="assistant", tool_calls=[call])])


def _tokens(*token_ids: int) -> TokenSequence:
    return TokenSequence(token_ids=token_ids)


def _conversation(role: str, content: str) -> Conversation:
    return Conversation(messages=[ChatMessage(role=role, content=content)])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "input"),
        ({"text": ""}, "text"),
        ({"text": "a" * 5_000}, "text"),
        ({"text": "a" * 3_000_000}, "text"),
        ({"conversation": Conversation()}, "conversation.messages"),
        ({"conversation": _conversation("wizard", "x")}, "conversation.messages[0].role"),
        ({"conversation": _conversation("", "x")}, "conversation.messages[0].role"),
        ({"conversation": _conversation("user", "a" * 5_000)}, "conversation.messages"),
        ({"conversation": Conversation(messages=[ChatMessage(role="user")] * 100_000)}, "conversation.messages"),
        ({"tokens": _tokens()}, "tokens.token_ids"),
        ({"tokens": _tokens(-1)}, "tokens.token_ids"),
        ({"tokens": _tokens(9_999)}, "tokens.token_ids"),
        ({"tokens": TokenSequence(token_ids=[1] * _MANY)}, "tokens.token_ids"),
        ({"text": "a", "stop": ["a"] * 17}, "stop"),
        ({"text": "a", "stop": [""]}, "stop"),
        ({"text": "a", "stop": ["a"] * _MANY}, "stop"),
        ({"text": "a", "cache_salt": "a" * 129}, "cache_salt"),
        ({"text": "a", "priority": 101}, "priority"),
        ({"text": "a", "choice_count": -1}, "choice_count"),
        ({"text": "a", "choice_count": 17}, "choice_count"),
        ({"conversation": _asking(tools=[Tool(name="f")] * 129)}, "conversation.tools"),
        ({"conversation": _asking(tools=[Tool(name="f")] * 2)}, "conversation.tools[1].name"),
        ({"conversation": _asking(tools=[Tool(name="f", parameters=_DEEP)])}, "conversation.tools[0].parameters"),
        ({"conversation": _asking(tools=[Tool(name="f", parameters=_LARGE)])}, "conversation.tools"),
        ({"conversation": _asking(template_arguments=_DEEP)}, "conversation.template_arguments"),
        ({"conversation": _asking(template_arguments='{"messages": []}')}, "conversation.template_arguments.messages"),
        ({"conversation": _asking(tool_choice=ToolChoice(name="f"))}, "conversation.tool_choice.name"),
        ({"conversation": _asking(tool_choice=ToolChoice(mode=99))}, "conversation.tool_choice.mode"),  # type: ignore[arg-type]
        ({"conversation": _calling(_DEEP)}, "conversation.messages[0].tool_calls[0].arguments"),
        ({"conversation": _calling("null")}, "conversation.messages[0].tool_calls[0].arguments"),
    ],
)
def test_an_input_that_cannot_be_served_is_refused_by_name(
    channel: grpc.Channel, fields: Mapping[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT, INVALID_FIELD, and the field as the proto calls it."""
    generate = GenerationServiceStub(channel).Generate  # type: ignore[no-untyped-call]

    assert refusal_of(generate, GenerateRequest(**fields)) == Refusal("INVALID_ARGUMENT", "INVALID_FIELD", field)


_OUT_OF_BOUNDS: Mapping[str, list[Any]] = {
    "temperature": [-1, 101, math.nan, math.inf],
    "top_p": [0, 1.1, -1, math.nan],
    "top_k": [-1],
    "min_p": [-0.1, 1.1, math.nan],
    "repetition_penalty": [0, -1, 11, math.nan, math.inf],
    "presence_penalty": [3, -3, math.nan],
    "frequency_penalty": [3, math.nan],
    "min_token_count": [-1, 100],
    "max_token_count": [0, -1],
    "top_logprob_count": [-1, 21],
    "prompt_logprob_count": [-1, 21],
    "stop_token_ids": [[-1], [9_999], [1] * 65],
    "logit_bias": [{1: 101}, {1: math.nan}, {-1: 1}, {9_999: 1}, dict.fromkeys(range(1_025), 1.0)],
}


@pytest.mark.parametrize("field", _OUT_OF_BOUNDS)
def test_a_sampling_parameter_out_of_bounds_is_refused_by_name(channel: grpc.Channel, field: str) -> None:
    """Every bound of generation.proto; NaN and infinity are in none."""
    generate = GenerationServiceStub(channel).Generate  # type: ignore[no-untyped-call]
    for value in _OUT_OF_BOUNDS[field]:
        sampling = SamplingParameters(**{"max_token_count": 3, field: value})  # type: ignore[arg-type]
        refusal = refusal_of(generate, GenerateRequest(text="abc", sampling=sampling))

        assert refusal == Refusal("INVALID_ARGUMENT", "INVALID_FIELD", f"sampling.{field}"), value


def test_more_tokens_than_the_context_are_refused(channel: grpc.Channel) -> None:
    """The input and the limit do not fit together."""
    request = GenerateRequest(text="abc", sampling=SamplingParameters(max_token_count=2**31 - 1))
    generate = GenerationServiceStub(channel).Generate  # type: ignore[no-untyped-call]

    assert refusal_of(generate, request) == Refusal("INVALID_ARGUMENT", "INVALID_FIELD", "text")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", TokenizeRequest(), "input"),
        ("Tokenize", TokenizeRequest(text="a" * 3_000_000), "text"),
        ("CountTokens", CountTokensRequest(), "input"),
        ("CountTokens", CountTokensRequest(conversation=Conversation()), "conversation.messages"),
        ("Detokenize", DetokenizeRequest(token_ids=[1] * _MANY), "token_ids"),
        ("Detokenize", DetokenizeRequest(token_ids=[9_999]), "token_ids"),
    ],
)
def test_what_cannot_be_tokenized_is_refused_by_name(
    channel: grpc.Channel, method: str, request_: Any, field: str
) -> None:
    """As Generate refuses it."""
    call = getattr(GenerationServiceStub(channel), method)  # type: ignore[no-untyped-call]

    assert refusal_of(call, request_) == Refusal("INVALID_ARGUMENT", "INVALID_FIELD", field)


def test_an_unknown_model_is_not_found(channel: grpc.Channel) -> None:
    """NOT_FOUND, whatever else is wrong."""
    generate = GenerationServiceStub(channel).Generate  # type: ignore[no-untyped-call]

    assert refusal_of(generate, GenerateRequest(model="nope", text="a")) == Refusal("NOT_FOUND", "MODEL_NOT_FOUND", "")


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x12\x02\xff\xfe", b"\x0a\x02\xff\xfe", b"\x12\x05a"])
def test_bytes_that_are_no_message_are_refused(channel: grpc.Channel, data: bytes) -> None:
    """Garbage, invalid UTF-8 in text and model, a string cut short."""
    refusal = refusal_of(channel.unary_stream(_GENERATE), data)

    assert refusal == Refusal("INVALID_ARGUMENT", "INVALID_FIELD", "request")


def test_unknown_fields_are_ignored(channel: grpc.Channel) -> None:
    """A newer client may send fields that this server does not know: the rule of protobuf."""
    request = GenerateRequest(text="abc", sampling=SamplingParameters(max_token_count=2)).SerializeToString()
    unknown = b"\xfa\x7f\x01a"

    assert list(channel.unary_stream(_GENERATE)(request + unknown, timeout=60))


@pytest.mark.parametrize("method", ["/baton.v1.GenerationService/Nope", "/baton.v1.Nope/Generate", "/nope"])
def test_an_unknown_method_is_unimplemented(channel: grpc.Channel, method: str) -> None:
    """Also services that other processes of Baton serve are not here."""
    assert refusal_of(channel.unary_unary(method), b"").code == "UNIMPLEMENTED"
