"""Every field of Generate has a counterpart in REST that asks router and nodes for exactly the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from baton.gateway.server import RunningGateway
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.rest import ask
from gateway.tool_models import ARGUMENTS, FUNCTION, TOOL, tool_cluster, tool_folder
from house.dialects.table import proto_paths

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
_CALL = {"id": "c1", "name": "get_weather", "arguments": ARGUMENTS}
_REST_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
_TOOL = FUNCTION | {"parameters": json.dumps(FUNCTION["parameters"]), "strict": True}
_REST_TOOL = TOOL | {"function": FUNCTION | {"strict": True}}
_TURNS = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Rain?", "name": "Ann"}]
_SEED = {"seed": 5, "max_token_count": 40}
_REST_SEED = {"seed": 5, "max_tokens": 40}


class Case(NamedTuple):
    """A request in both dialects."""

    ours: dict[str, Any]
    path: str
    theirs: dict[str, Any]


def _form(ours: dict[str, str], theirs: dict[str, Any]) -> Case:
    return Case({"text": "x", "sampling": {**_SEED, "structured_output": ours}}, "/v1/completions", theirs)


def _choice(ours: dict[str, Any], theirs: Any) -> Case:
    conversation = {"messages": _TURNS, "tools": [_TOOL], "tool_choice": ours}
    body = {"messages": _TURNS, "tools": [_REST_TOOL], "tool_choice": theirs}
    return Case({"conversation": conversation, "sampling": _SEED}, "/v1/chat/completions", body)


CASES = [
    Case(
        {
            "model": MODEL,
            "conversation": {
                "messages": [
                    *_TURNS,
                    {"role": "assistant", "reasoning": "Hm.", "tool_calls": [_CALL]},
                    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
                ],
                "tools": [_TOOL],
                "parallel_tool_calls": False,
                "template_arguments": '{"enable_thinking": true}',
                "reasoning_effort": "low",
            },
            "sampling": _SEED,
            "prompt_cache_key": "k",
            "priority": -2,
        },
        "/v1/chat/completions",
        {
            "messages": [
                *_TURNS,
                {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [_REST_CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
            "tools": [_REST_TOOL],
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"enable_thinking": True},
            "reasoning_effort": "low",
            "prompt_cache_key": "k",
            "priority": -2,
        },
    ),
    Case(
        {
            "conversation": {
                "messages": [*_TURNS, {"role": "assistant", "content": "It"}],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
            "sampling": _SEED,
        },
        "/v1/chat/completions",
        {
            "messages": [*_TURNS, {"role": "assistant", "content": "It"}],
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
    ),
    _choice({"mode": "TOOL_MODE_REQUIRED"}, "required"),
    _choice({"name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}}),
    Case(
        {
            "text": "hello world",
            "choice_count": 3,
            "stop": ["zzz"],
            "include_stop_in_text": True,
            "cache_salt": "s",
            "sampling": {
                "temperature": 0.5,
                "top_p": 0.5,
                "top_k": 9,
                "min_p": 0.25,
                "repetition_penalty": 1.5,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.5,
                "logit_bias": {7: 2},
                "stop_token_ids": [3],
                "ignore_eos": True,
                "min_token_count": 2,
                "top_logprob_count": 1,
                "prompt_logprob_count": 2,
                "bad_words": [{"token_ids": [85]}],
                **_SEED,
            },
        },
        "/v1/completions",
        {
            "prompt": "hello world",
            "n": 3,
            "stop": "zzz",
            "include_stop_str_in_output": True,
            "cache_salt": "s",
            "temperature": 0.5,
            "top_p": 0.5,
            "top_k": 9,
            "min_p": 0.25,
            "repetition_penalty": 1.5,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "logit_bias": {"7": 2},
            "stop_token_ids": [3],
            "ignore_eos": True,
            "min_tokens": 2,
            "logprobs": 1,
            "prompt_logprobs": 2,
            "bad_words": ["v"],
        },
    ),
    Case({"tokens": {"token_ids": [9, 8, 7]}, "sampling": _SEED}, "/v1/completions", {"prompt": [9, 8, 7]}),
    _form({"json_schema": json.dumps(_SCHEMA, separators=(",", ":"))}, {"prompt": "x", "guided_json": _SCHEMA}),
    _form({"regex": "[0-9]+"}, {"prompt": "x", "response_format": {"type": "regex", "regex": "[0-9]+"}}),
    _form({"lark": 'start: "a"'}, {"prompt": "x", "structured_outputs": {"grammar": 'start: "a"'}}),
]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose template knows tools and reasoning."""
    return tool_folder(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, "hello world", num_nodes=1)


def test_rest_asks_router_and_nodes_for_the_same(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Names of requests and the time that clients wait apart."""
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        for case in CASES:
            list(GenerationServiceStub(channel).Generate(messages.GenerateRequest(**case.ours), timeout=20))
            ours = _asked(cluster)
            reply = ask(gateway, case.path, {"model": MODEL, **_REST_SEED, **case.theirs})

            assert reply.status == 200, reply.data
            assert ours == _asked(cluster), case
            assert ours


def test_no_field_is_without_a_case() -> None:
    """One that is new is asked for in both dialects before it lands."""
    asked = {path for case in CASES for path in _set_paths(messages.GenerateRequest(**case.ours), "")}

    assert set(proto_paths(messages.GenerateRequest.DESCRIPTOR)) - asked == set()


def _asked(cluster: FakeCluster) -> list[str]:
    """Return what router and nodes have been asked for, and forget it."""
    requests: list[Any] = [*cluster.router.requests, *cluster.decodes[0].requests]
    told = []
    for request in requests:
        for name in ("request_id", "timeout"):
            if name in request.DESCRIPTOR.fields_by_name:
                request.ClearField(name)
        told.append(str(request))
    cluster.router.requests.clear()
    cluster.decodes[0].requests.clear()
    return sorted(told)


def _set_paths(message: Message, start: str) -> Iterator[str]:
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry:
            yield f"{start}{field.name}"
            continue
        many = field.label == field.LABEL_REPEATED
        for each in value if many else [value]:
            yield from _set_paths(each, f"{start}{field.name}{'[]' if many else ''}.")
