"""Tools, reasoning and log-probabilities of POST /v1/responses, through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerFast

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.rest import ask
from gateway.tool_models import ANSWER, ARGUMENTS, FUNCTION, REASONING, tool_cluster, tool_folder

TOOL: Any = {"type": "function", **FUNCTION, "strict": False}
OPTIONS: dict[str, Any] = {"model": MODEL, "input": "Zürich?", "tools": [TOOL]}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a template that knows tools."""
    return tool_folder(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, ANSWER)


def test_reasoning_text_and_calls_are_items(client: openai.OpenAI) -> None:
    """In the order in which the model wrote them."""
    response = client.responses.create(**OPTIONS)

    reasoning, message, *calls = response.output
    assert reasoning.content[0].text == REASONING  # type: ignore[union-attr, index]
    assert response.output_text == message.content[0].text == "Let me see."  # type: ignore[union-attr, index]
    assert [(call.type, call.name, call.arguments, call.status) for call in calls] == [  # type: ignore[union-attr]
        ("function_call", "get_weather", ARGUMENTS, "completed")
    ] * 2
    assert len({call.call_id for call in calls}) == 2  # type: ignore[union-attr]
    assert response.tools[0].name == "get_weather"  # type: ignore[union-attr]
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 3


def test_a_stream_is_put_together_by_the_client(client: openai.OpenAI) -> None:
    """The same items, from numbered events."""
    with client.responses.stream(**OPTIONS) as stream:
        events: list[Any] = list(stream)
        response = stream.get_final_response()

    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me see."
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(event.delta for event in deltas if event.output_index == 2) == ARGUMENTS
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert done == [ARGUMENTS] * 2
    kinds = [event.type for event in events]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    reasoning = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert reasoning == REASONING


def test_calls_and_results_are_sent_back(client: openai.OpenAI, cluster: FakeCluster, model_dir: Path) -> None:
    """Items of one answer become one message of the conversation."""
    first = client.responses.create(**OPTIONS)
    call_ids = [item.call_id for item in first.output if item.type == "function_call"]
    results: list[Any] = [{"type": "function_call_output", "call_id": each, "output": "rain"} for each in call_ids]
    items = [{"role": "user", "content": "Zürich?"}, *(item.to_dict() for item in first.output), *results]
    client.responses.create(**(OPTIONS | {"input": items}))

    function = {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
    calls = [{"id": each, "type": "function", "function": function} for each in call_ids]
    messages: list[Any] = [
        {"role": "user", "content": "Zürich?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": REASONING, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": each, "content": "rain"} for each in call_ids),
    ]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model_dir))
    tools: Any = [{"type": "function", "function": FUNCTION}]
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(cluster.decodes[0].requests[-1].prompt_token_ids) == expected


def test_log_probabilities_are_included(client: openai.OpenAI) -> None:
    """Whole and streamed."""
    options: Any = {"model": MODEL, "input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 0}
    answer_tokens = client.responses.create(**options).output[1].content[0].logprobs  # type: ignore[union-attr, index]
    events: list[Any] = list(client.responses.create(**options, stream=True))

    streamed = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert answer_tokens is not None
    assert "Let me see." in "".join(entry.token for entry in answer_tokens)
    assert streamed
    assert {entry.logprob for entry in streamed} == {-0.5}


def test_a_named_function_is_forced(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """By a grammar."""
    client.responses.create(**OPTIONS, tool_choice={"type": "function", "name": "get_weather"})

    assert "get_weather" in cluster.decodes[0].requests[0].sampling.structured_output.lark


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "1"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "message", "role": "user", "content": "x", "call_id": "c"}]}, "input[0].call_id"),
    ],
)
def test_what_cannot_be_served_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    """400 with param."""
    reply = ask(gateway, "/v1/responses", OPTIONS | fields)

    assert (reply.status, reply.body["error"]["param"]) == (400, param)
