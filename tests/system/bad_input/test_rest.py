"""Bodies that the REST API refuses: each gets its own error, and a request beside it runs on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import psutil
import pytest

from system.cluster import Cluster
from system.rest import CHAT, CHAT_PATH, COMPLETION, COMPLETION_PATH, ask, post

pytestmark = pytest.mark.usefixtures("bystander")

MOST_CPU_SECONDS = 3.0
"""Of the gateway's process for a huge body, and what it serves beside it: longer it holds nobody up."""

_WRONG_TYPES: Mapping[str, object] = {
    "model": 1,
    "messages": "hi",
    "stream": "yes",
    "stream_options": True,
    "n": "1",
    "stop": 5,
    "seed": 1.5,
    "temperature": "hot",
    "top_p": [1],
    "top_k": 1.5,
    "min_p": {},
    "presence_penalty": "a",
    "frequency_penalty": True,
    "repetition_penalty": "1",
    "logit_bias": [1],
    "max_tokens": 1e30,
    "max_completion_tokens": "4",
    "min_tokens": 0.5,
    "stop_token_ids": 1,
    "ignore_eos": 1,
    "cache_salt": 5,
    "priority": "high",
    "user": {},
    "metadata": [],
    "logprobs": 1,
    "top_logprobs": True,
}


@pytest.mark.parametrize("name", _WRONG_TYPES)
def test_a_value_of_a_wrong_type_is_refused_by_name(demo_cluster: Cluster, name: str) -> None:
    """400, the parameter, invalid_type."""
    reply = post(demo_cluster, CHAT_PATH, {**CHAT, name: _WRONG_TYPES[name]})

    assert reply.error == (400, name, "invalid_type")


@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"model": "nope"}, 404, "model", "model_not_found"),
        ({"messages": []}, 400, "messages", "empty_array"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": "a" * 5_000}]}, 400, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "a" * 5_000_000}]}, 400, "messages", "context_length_exceeded"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            400,
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, 400, "max_tokens", "invalid_value"),
        ({"max_tokens": 10**9}, 400, "messages", "context_length_exceeded"),
        ({"max_tokens": 10**30}, 400, "messages", "context_length_exceeded"),
        ({"temperature": 101}, 400, "temperature", "invalid_value"),
        ({"temperature": -0.1}, 400, "temperature", "invalid_value"),
        ({"n": 0}, 400, "n", "invalid_value"),
        ({"n": 17}, 400, "n", "invalid_value"),
        ({"seed": 2**63}, 400, "seed", "invalid_value"),
        ({"stop": ["a"] * 17}, 400, "stop", "invalid_value"),
        ({"stop": ""}, 400, "stop", "invalid_value"),
        ({"logit_bias": {"1": 100.5}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9999": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"one": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1_0": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {" 1": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"+1": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 1, "01": 2}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"\u0661": 1}}, 400, "logit_bias", "invalid_value"),
        ({"logit_bias": {"9" * 6_000: 1}}, 400, "logit_bias", "invalid_value"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0].function", "missing_required_parameter"),
        ({"stream": True, "top_p": 0}, 400, "top_p", "invalid_value"),
    ],
)
def test_a_chat_that_cannot_be_served_is_refused_by_name(
    demo_cluster: Cluster, fields: Mapping[str, object], status: int, param: str, code: str
) -> None:
    """Status, parameter and code say what is wrong."""
    reply = post(demo_cluster, CHAT_PATH, {**CHAT, **fields})

    assert reply.error == (status, param, code)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": [9_999]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": [2**31]}, "prompt", "invalid_value"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": [1, "a"]}, "prompt", "invalid_type"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": [1] * 5_000}, "prompt", "context_length_exceeded"),
        ({"logprobs": 21}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
    ],
)
def test_a_completion_that_cannot_be_served_is_refused_by_name(
    demo_cluster: Cluster, fields: Mapping[str, object], param: str, code: str
) -> None:
    """400 with parameter and code."""
    reply = post(demo_cluster, COMPLETION_PATH, {**COMPLETION, **fields})

    assert reply.error == (400, param, code)


_BODY = json.dumps(CHAT).encode()
_NO_JSON = {
    "empty": b"",
    "cut short": _BODY[:-2],
    "two values": _BODY + b"{}",
    "invalid UTF-8": _BODY.replace(b"What", b"\xff\xfe"),
    "half a surrogate pair": _BODY.replace(b"What", b"\\ud800"),
    "NaN": _BODY[:-1] + b',"top_p":NaN}',
    "Infinity": _BODY[:-1] + b',"top_p":-Infinity}',
    "nested too deeply": _BODY[:-1] + b',"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "never closed": b'{"model":' + b'{"a":' * 100_000,
}


@pytest.mark.parametrize("name", _NO_JSON)
def test_a_body_that_is_no_json_is_refused(demo_cluster: Cluster, name: str) -> None:
    """400, whatever is wrong with it."""
    reply = ask(demo_cluster, CHAT_PATH, _NO_JSON[name])

    assert reply.error[0] == 400


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"1"])
def test_a_body_that_is_no_object_is_refused(demo_cluster: Cluster, body: bytes) -> None:
    """400 with the type that came."""
    assert ask(demo_cluster, CHAT_PATH, body).error == (400, "body", "invalid_type")


def test_a_number_beyond_doubles_is_refused(demo_cluster: Cluster) -> None:
    """1e999 is valid JSON, and no temperature."""
    reply = ask(demo_cluster, CHAT_PATH, _BODY[:-1] + b',"min_p":1e999}')

    assert reply.error == (400, "min_p", "invalid_type")


def test_the_last_of_equal_keys_counts(demo_cluster: Cluster) -> None:
    """As in Python's and JavaScript's own parsers."""
    reply = ask(demo_cluster, CHAT_PATH, _BODY[:-1] + b',"max_tokens":3,"max_tokens":2}')

    assert (reply.status, reply.body["usage"]["completion_tokens"]) == (200, 2)


_HUGE: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "tokens": (COMPLETION_PATH, {**COMPLETION, "prompt": [1] * 10**6}, "prompt"),
    "prompts": (COMPLETION_PATH, {**COMPLETION, "prompt": ["a"] * 10**6}, "prompt"),
    "lists": (COMPLETION_PATH, {**COMPLETION, "prompt": [[1]] * 10**6}, "prompt"),
    "messages": (CHAT_PATH, {**CHAT, "messages": [{"role": "user", "content": ""}] * 200_000}, "messages"),
    "stops": (CHAT_PATH, {**CHAT, "stop": ["a"] * 10**6}, "stop"),
    "biases": (CHAT_PATH, {**CHAT, "logit_bias": {str(key): 1 for key in range(500_000)}}, "logit_bias"),
    "stop tokens": (CHAT_PATH, {**CHAT, "stop_token_ids": [1] * 10**6}, "stop_token_ids"),
    "tools": (CHAT_PATH, {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}] * 150_000}, "tools"),
    "unserved": (CHAT_PATH, {**CHAT, "functions": [[]] * 10**6}, "functions"),
}


@pytest.mark.parametrize("name", _HUGE)
def test_a_huge_array_is_refused_without_a_long_pause_for_others(demo_cluster: Cluster, name: str) -> None:
    """The parameter is named, and the stream beside it goes on."""
    path, body, param = _HUGE[name]
    data = json.dumps(body).encode()
    gateway = psutil.Process(demo_cluster.pid_of("gateway"))
    before = gateway.cpu_times()
    reply = ask(demo_cluster, path, data)
    after = gateway.cpu_times()

    assert reply.error[:2] == (400, param)
    assert after.user + after.system - before.user - before.system < MOST_CPU_SECONDS
