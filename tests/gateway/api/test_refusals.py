"""What the REST API refuses, and how it says so."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import pytest

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.rest import ask

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
TEXT = {"model": MODEL, "prompt": "hello", "max_tokens": 2}


class Reply(NamedTuple):
    """An answer."""

    status: int
    error: dict[str, Any]


def _post(gateway: RunningGateway, path: str, body: object) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    connection.request("POST", path, data, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return Reply(response.status, answer.get("error", {}))


def _get(gateway: RunningGateway, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"chat_template_kwargs": {"foo": 1}}, "chat_template_kwargs.foo", "invalid_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "regex"}}, "response_format.regex", None),
        ({"response_format": {"type": "json_object", "regex": "a"}}, "response_format.regex", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
            "invalid_value",
        ),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "invalid_value"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "invalid_value"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs.structural_tag", "unknown_parameter"),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "invalid_value"),
        ({"guided_regex": ""}, "guided_regex", "invalid_value"),
        ({"guided_json": "x" * 300_000}, "guided_json", "invalid_value"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hello"}, "messages", "invalid_type"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "messages", "context_length_exceeded"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1000}, "messages", "context_length_exceeded"),
        ({"max_tokens": 10**12}, "messages", "context_length_exceeded"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
        ({"max_tokens": 2, "min_tokens": 3}, "min_tokens", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"min_p": 2}, "min_p", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        ({"seed": 2**63}, "seed", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"cache_salt": "x" * 129}, "cache_salt", "invalid_value"),
        ({"priority": -101}, "priority", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"model": None}, "model", "invalid_type"),
    ],
)
def test_a_chat_parameter_that_cannot_be_served_is_named(
    gateway: RunningGateway, fields: dict[str, Any], param: str, code: str
) -> None:
    """400 with param and code, and nothing is placed."""
    status, error = _post(gateway, "/v1/chat/completions", CHAT | fields)

    assert (status, error["param"], error["code"]) == (400, param, code)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"suffix": "x"}, "suffix", "unsupported_parameter"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"echo": True, "logprobs": 0, "stream": True}, "logprobs", "unsupported_parameter"),
        ({"echo": True, "max_tokens": 0, "stream": True}, "max_tokens", "unsupported_parameter"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "unsupported_parameter"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "invalid_value"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": [1, "x"]}, "prompt", "invalid_type"),
        ({"prompt": [1.5]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": [999_999]}, "prompt", "invalid_value"),
        ({"prompt": ["x"] * 65}, "prompt", "invalid_value"),
        ({"prompt": ["x"] * 64, "n": 3}, "n", "invalid_value"),
        ({"prompt": [1] * 256}, "prompt", "context_length_exceeded"),
        ({"prompt": [1] * 10_000}, "prompt", "context_length_exceeded"),
    ],
)
def test_a_completion_parameter_that_cannot_be_served_is_named(
    gateway: RunningGateway, fields: dict[str, Any], param: str, code: str
) -> None:
    """400 with param and code."""
    status, error = _post(gateway, "/v1/completions", TEXT | fields)

    assert (status, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "store": False, "stop": None},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}], "service_tier": "auto"},
        {"messages": [{"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}]},
        {"stream_options": None, "n": None, "logit_bias": {}, "top_p": None, "user": "me", "metadata": {"a": "b"}},
    ],
)
def test_values_that_ask_for_nothing_are_taken(gateway: RunningGateway, fields: dict[str, Any]) -> None:
    """Clients send defaults and answers they got."""
    assert _post(gateway, "/v1/chat/completions", CHAT | {"max_tokens": 1} | fields).status == 200


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"model": ', "JSON"),
        (b"", "JSON"),
        (b'{"model": "tiny", "messages": [], "audio": ' + b"[" * 100_000, "JSON"),
        (b"[]", "Expected `object`"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(gateway: RunningGateway, body: bytes, problem: str) -> None:
    """400 that says what is wrong."""
    status, error = _post(gateway, "/v1/chat/completions", body)

    assert status == 400
    assert problem in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_unknown_model_is_not_found(gateway: RunningGateway, path: str) -> None:
    """Whatever else is in the request."""
    body = (CHAT if "chat" in path else TEXT) | {"model": "other"}
    status, error = _post(gateway, path, body)

    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")


def test_models_are_listed_and_found_by_name(gateway: RunningGateway) -> None:
    """With the context length that the nodes report."""
    status, models = _get(gateway, "/v1/models")

    assert status == 200
    assert [(model["id"], model["object"]) for model in models["data"]] == [(MODEL, "model")]
    assert _get(gateway, f"/v1/models/{MODEL}")[1]["id"] == MODEL
    assert _get(gateway, "/v1/models/other")[0] == 404


def test_health_and_version_answer(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """For probes and people."""
    assert _get(gateway, "/health") == (200, {"status": "ok"})
    assert _get(gateway, "/version")[1]["version"]


def test_head_asks_for_what_get_gives(gateway: RunningGateway) -> None:
    """As load balancers do; what only takes POST refuses it."""
    for path in ("/health", "/v1/models", "/metrics"):
        reply = ask(gateway, path, method="HEAD")
        assert (reply.status, reply.data) == (200, b"")
    assert ask(gateway, "/v1/completions", method="HEAD").status == 405


def test_unknown_paths_and_methods_are_told_apart(gateway: RunningGateway) -> None:
    """404 and 405."""
    assert _get(gateway, "/v2/models")[0] == 404
    assert _get(gateway, "/v1/completions")[0] == 405
    assert _post(gateway, "/v1/models", b"").status == 405
