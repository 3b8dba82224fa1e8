"""Tools and thinking of POST /v1/messages, through the official client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from transformers import PreTrainedTokenizerFast

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster
from gateway.rest import ask
from gateway.tool_models import ANSWER, ARGUMENTS, CALL, FUNCTION, REASONING, answer_with, tool_cluster, tool_folder

TOOL: Any = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
TURN: Any = {"role": "user", "content": "Zürich?"}
OPTIONS: dict[str, Any] = {"model": MODEL, "max_tokens": 2048, "messages": [TURN], "tools": [TOOL]}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a template that knows tools."""
    return tool_folder(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, ANSWER)


@pytest.fixture
def claude(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    """Return the official client."""
    url = f"http://127.0.0.1:{gateway.http_port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_thinking_text_and_calls_are_blocks(claude: anthropic.Anthropic) -> None:
    """In the order in which the model wrote them, arguments parsed."""
    message = claude.messages.create(**OPTIONS)

    thinking, text, *calls = message.content
    assert message.stop_reason == "tool_use"
    assert (thinking.type, thinking.thinking) == ("thinking", REASONING)  # type: ignore[union-attr]
    assert (text.type, text.text) == ("text", "Let me see.")  # type: ignore[union-attr]
    assert [(call.type, call.name, call.input) for call in calls] == [  # type: ignore[union-attr]
        ("tool_use", "get_weather", json.loads(ARGUMENTS))
    ] * 2


def test_a_stream_is_put_together_by_the_client(claude: anthropic.Anthropic) -> None:
    """The same blocks; arguments come as pieces of JSON."""
    with claude.messages.stream(**OPTIONS) as stream:
        events: list[Any] = list(stream)
        message = stream.get_final_message()

    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[3].input == json.loads(ARGUMENTS)  # type: ignore[union-attr]
    assert message.stop_reason == "tool_use"
    deltas = [event.delta for event in events if event.type == "content_block_delta" and event.index == 2]
    assert "".join(delta.partial_json for delta in deltas) == ARGUMENTS
    assert len(deltas) > 5


def test_calls_and_results_are_sent_back(claude: anthropic.Anthropic, cluster: FakeCluster, model_dir: Path) -> None:
    """As the template has them; what the user says beside results follows them."""
    content: list[Any] = [
        {"type": "thinking", "thinking": "Hm", "signature": ""},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": json.loads(ARGUMENTS)},
    ]
    result: Any = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    messages: list[Any] = [
        TURN,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    claude.messages.create(**(OPTIONS | {"messages": messages}))

    function = {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
    turns: list[Any] = [
        TURN,
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm",
            "tool_calls": [{"function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "And?"},
    ]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model_dir))
    tools: Any = [{"type": "function", "function": FUNCTION}]
    text = tokenizer.apply_chat_template(turns, tools=tools, add_generation_prompt=True, tokenize=False)
    expected = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == expected


@pytest.mark.parametrize(
    "choice",
    [{"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "any", "disable_parallel_tool_use": True}],
)
def test_calls_can_be_forced(claude: anthropic.Anthropic, cluster: FakeCluster, choice: Any) -> None:
    """By a grammar; several at once only where nothing forbids it."""
    claude.messages.create(**OPTIONS, tool_choice=choice)

    lark = cluster.decodes[0].requests[0].sampling.structured_output.lark
    assert "get_weather" in lark
    assert ("{0,31}" in lark) == (choice == {"type": "any"})


def test_without_tools_in_use_none_are_read(claude: anthropic.Anthropic, cluster: FakeCluster) -> None:
    """What the model writes between its marks is then text."""
    answer_with(cluster, CALL)
    message = claude.messages.create(**OPTIONS, tool_choice={"type": "none"})

    assert ARGUMENTS in message.content[0].text  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"


def test_tools_count_as_tokens(claude: anthropic.Anthropic) -> None:
    """As they are used."""
    count = claude.messages.count_tokens(model=MODEL, messages=[TURN], tools=[TOOL])
    usage = claude.messages.create(**OPTIONS).usage

    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": {"type": "array"}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any", "name": "x"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "x"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": 1}]}]},
            "messages[0].content[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "input": {}}]}, TURN]},
            "messages[0].content[0].name",
        ),
    ],
)
def test_what_cannot_be_served_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    """400, in Anthropic's words."""
    reply = ask(gateway, "/v1/messages", OPTIONS | fields)

    assert reply.status == 400
    assert f"`{param}`" in reply.body["error"]["message"]
