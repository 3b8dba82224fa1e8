"""POST /tokenize and /detokenize."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import CONTEXT_TOKENS, MODEL
from text.tokenizer_folders import byte_level

TOKENIZER = byte_level()
MESSAGES = [{"role": "user", "content": "hello 😀"}]


def _post(gateway: RunningGateway, path: str, **body: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.http_port, timeout=20)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def _refusal(gateway: RunningGateway, path: str, **body: Any) -> tuple[int, Any, Any]:
    status, answer = _post(gateway, path, **body)
    return status, answer["error"]["param"], answer["error"]["code"]


def test_a_text_becomes_the_tokens_that_a_completion_would_have(gateway: RunningGateway) -> None:
    """With their number and the model's context, in vLLM's shape; the model may be left out."""
    ids = list(TOKENIZER("hello world")["input_ids"])
    expected = {"count": len(ids), "max_model_len": CONTEXT_TOKENS, "tokens": ids, "token_strs": None}

    assert _post(gateway, "/tokenize", model=MODEL, prompt="hello world") == (200, expected)
    assert _post(gateway, "/tokenize", prompt="hello world") == (200, expected)


@pytest.mark.parametrize("has_beginning", [None, True, False])
def test_a_conversation_is_rendered_as_a_chat_would_be(gateway: RunningGateway, has_beginning: bool | None) -> None:
    """With the beginning of an answer unless it is not wanted."""
    _, answer = _post(gateway, "/tokenize", messages=MESSAGES, add_generation_prompt=has_beginning)

    is_wanted = has_beginning is not False
    expected = TOKENIZER.apply_chat_template(MESSAGES, add_generation_prompt=is_wanted, return_dict=False)
    assert answer["tokens"] == list(expected)


def test_tokens_come_as_the_vocabulary_writes_them_if_asked(gateway: RunningGateway) -> None:
    """One string per token."""
    _, answer = _post(gateway, "/tokenize", prompt="hello w", return_token_strs=True)

    assert answer["token_strs"] == ["hello", "Ġw"]


def test_an_empty_text_has_no_tokens(gateway: RunningGateway) -> None:
    """There is nothing wrong with counting nothing."""
    assert _post(gateway, "/tokenize", prompt="")[1]["count"] == 0


def test_tokens_become_their_text_again(gateway: RunningGateway) -> None:
    """Special tokens as their names."""
    _, tokenized = _post(gateway, "/tokenize", messages=MESSAGES)
    status, answer = _post(gateway, "/detokenize", model=MODEL, tokens=tokenized["tokens"])

    assert (status, answer) == (200, {"prompt": "<|user|>hello 😀<|end|><|assistant|>"})
    assert _post(gateway, "/detokenize", tokens=[]) == (200, {"prompt": ""})


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (400, "prompt", "missing_required_parameter")),
        ({"prompt": "x", "messages": MESSAGES}, (400, "prompt", "invalid_value")),
        ({"prompt": "x", "add_generation_prompt": True}, (400, "add_generation_prompt", "invalid_value")),
        ({"prompt": ["x"]}, (400, "prompt", "invalid_type")),
        (
            {"messages": MESSAGES, "continue_final_message": True},
            (400, "continue_final_message", "unsupported_parameter"),
        ),
        ({"prompt": "x", "tools": [{"type": "x"}]}, (400, "tools", "invalid_value")),
        ({"messages": []}, (400, "messages", "empty_array")),
        (
            {"messages": [MESSAGES[0] | {"function_call": {}}]},
            (400, "messages[0].function_call", "unsupported_parameter"),
        ),
        ({"prompt": "x" * 100_000}, (400, "prompt", "context_length_exceeded")),
        ({"prompt": "x", "model": "other"}, (404, "model", "model_not_found")),
    ],
)
def test_what_cannot_be_tokenized_is_named(
    gateway: RunningGateway, body: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    """400 with param and code; 404 for another model."""
    assert _refusal(gateway, "/tokenize", **body) == refusal


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (400, "tokens", "missing_required_parameter")),
        ({"tokens": [-1]}, (400, "tokens", "invalid_value")),
        ({"tokens": [10**30]}, (400, "tokens", "invalid_value")),
        ({"tokens": [1] * (CONTEXT_TOKENS * 256 + 1)}, (400, "tokens", "invalid_value")),
        ({"tokens": ["a"]}, (400, "tokens[0]", "invalid_type")),
        ({"tokens": [1], "model": "other"}, (404, "model", "model_not_found")),
    ],
)
def test_what_cannot_be_detokenized_is_named(
    gateway: RunningGateway, body: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    """400 with param and code; 404 for another model."""
    assert _refusal(gateway, "/detokenize", **body) == refusal
