"""Tools and reasoning in chat completions, through the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerFast

from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster, Loop
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
    tool_tokenizer,
)

MESSAGES: list[Any] = [{"role": "user", "content": "Zürich?"}]
OPTIONS: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL]}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module", params=[True, False], ids=["special", "text"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder whose marks are special tokens, and one in which they are text."""
    return tool_folder(tmp_path_factory.mktemp("tools"), has_special_marks=request.param)


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster whose context has room for tools."""
    return tool_cluster(model_dir, ANSWER)


def _prompt_of(model_dir: Path, messages: list[Any], **options: Any) -> list[int]:
    """Return the tokens that transformers makes of a conversation."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(model_dir))
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **options)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_calls_content_and_reasoning_are_told_apart(client: openai.OpenAI) -> None:
    """Each in its field, arguments as the model wrote them."""
    choice = client.chat.completions.create(**OPTIONS).choices[0]

    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.reasoning_content == choice.message.reasoning == REASONING  # type: ignore[attr-defined]
    calls: Any = choice.message.tool_calls
    assert [(call.type, call.function.name, call.function.arguments) for call in calls] == [
        ("function", "get_weather", ARGUMENTS)
    ] * 2
    assert len({call.id for call in calls}) == 2


def test_a_stream_gives_the_same_in_pieces(client: openai.OpenAI) -> None:
    """The first delta of a call has id and name, later ones pieces of its arguments; no mark is seen."""
    chunks = list(client.chat.completions.create(**OPTIONS, stream=True))

    deltas: list[Any] = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == REASONING
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    opening = [call for call in calls if call.id]
    assert [(call.index, call.type, call.function.name) for call in opening] == [
        (0, "function", "get_weather"),
        (1, "function", "get_weather"),
    ]
    for index in (0, 1):
        pieces = [call.function.arguments for call in calls if call.index == index]
        assert "".join(pieces) == ARGUMENTS
        assert len(pieces) > 5
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_helper_puts_a_stream_together(client: openai.OpenAI) -> None:
    """Events of arguments, and the message at the end."""
    with client.chat.completions.stream(**OPTIONS) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    message: Any = final.choices[0].message
    assert [call.function.arguments for call in message.tool_calls] == [ARGUMENTS] * 2
    assert message.content == "Let me see."
    kinds = [event.type for event in events]
    assert kinds.count("tool_calls.function.arguments.done") == 2


def test_reasoning_tokens_are_counted(client: openai.OpenAI, model_dir: Path) -> None:
    """Where the closing mark is a token of its own; elsewhere nothing is claimed."""
    usage = client.chat.completions.create(**OPTIONS).usage

    assert usage is not None
    tokenizer = tool_tokenizer()
    if "</think>" not in (model_dir / "tokenizer.json").read_text():
        assert usage.completion_tokens_details is None
        return
    expected = len(tokenizer(f"\n{REASONING}\n", add_special_tokens=False)["input_ids"])
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == expected


def test_reasoning_that_the_prompt_opened_is_recognised(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """By a variable of the template."""
    answer_with(cluster, f"{REASONING}\n</think>\n\nFine.")
    kwargs = {"chat_template_kwargs": {"enable_thinking": True}}
    message = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=kwargs).choices[0].message

    assert message.content == "Fine."
    assert message.reasoning_content == REASONING  # type: ignore[attr-defined]
    assert message.tool_calls is None
    prompt = list(cluster.decodes[0].requests[0].prompt_token_ids)
    expected = _prompt_of(cluster.model_dir, MESSAGES, enable_thinking=True)
    assert prompt == expected


@pytest.mark.parametrize("sent", [ARGUMENTS, ARGUMENTS[:-1]], ids=["whole", "cut off"])
def test_tools_calls_and_results_are_rendered_as_transformers_does(
    client: openai.OpenAI, cluster: FakeCluster, sent: str
) -> None:
    """By the model's own template: arguments as objects, text parts as text; also of calls that the limit cut off."""
    messages: list[Any] = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "x",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": sent}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "rain"}]},
    ]
    client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])

    function = {"name": "get_weather", "arguments": json.loads(ARGUMENTS)}
    rendered = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "x",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    expected = _prompt_of(cluster.model_dir, rendered, tools=[TOOL])
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == expected


def test_without_parallel_calls_there_is_one(client: openai.OpenAI) -> None:
    """The first."""
    message = client.chat.completions.create(**OPTIONS, parallel_tool_calls=False).choices[0].message

    assert message.tool_calls is not None
    assert len(message.tool_calls) == 1


def test_tool_choice_none_neither_offers_nor_reads_tools(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The prompt is as without them."""
    answer_with(cluster, CALL)
    choice = client.chat.completions.create(**OPTIONS, tool_choice="none").choices[0]

    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == _prompt_of(cluster.model_dir, MESSAGES)


def test_a_call_that_the_limit_cuts_is_given_out_as_far_as_it_came(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """With the reason `length`."""
    answer_with(cluster, CALL)
    choice = client.chat.completions.create(**OPTIONS, max_tokens=60).choices[0]

    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    assert ARGUMENTS.startswith(choice.message.tool_calls[0].function.arguments)  # type: ignore[union-attr]


def test_log_probabilities_come_with_calls(client: openai.OpenAI) -> None:
    """Every token's, streamed or whole."""
    whole = client.chat.completions.create(**OPTIONS, logprobs=True)
    chunks = list(client.chat.completions.create(**OPTIONS, logprobs=True, stream=True))

    content: Any = whole.choices[0].logprobs
    assert whole.usage is not None
    assert len(content.content) == whole.usage.completion_tokens
    streamed = [
        entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert len(streamed) == len(content.content)


@pytest.mark.parametrize(
    ("choice", "parallel", "marker"),
    [
        ("required", True, "{0,31}"),
        ("required", False, "call_0"),
        ({"type": "function", "function": {"name": "get_weather"}}, True, "call_0"),
    ],
)
def test_a_forced_call_is_constrained_by_a_grammar(
    client: openai.OpenAI, cluster: FakeCluster, choice: Any, parallel: bool, marker: str
) -> None:
    """In the model's notation, with the schema."""
    other = {"type": "function", "function": {"name": "now", "parameters": {}}}
    options = OPTIONS | {"tools": [TOOL, other], "tool_choice": choice, "parallel_tool_calls": parallel}
    client.chat.completions.create(**options)

    lark = cluster.decodes[0].requests[0].sampling.structured_output.lark
    assert marker in lark
    assert ("now" in lark) == (choice == "required")
    assert '"city": {"type": "string"}' in lark


def test_a_strict_tool_is_constrained_after_any_text(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """One that is not strict leaves the model alone."""
    strict = {"type": "function", "function": FUNCTION | {"strict": True}}
    client.chat.completions.create(**(OPTIONS | {"tools": [strict]}))
    client.chat.completions.create(**OPTIONS)

    first, second = (request.sampling for request in cluster.decodes[0].requests)
    assert "start: (body)* tail" in first.structured_output.lark
    assert not second.HasField("structured_output")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [TOOL, TOOL, {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 65}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"description": "x"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": 1}}}]},
            "tools[0].function.parameters.properties",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"x": json.loads("[" * 40 + "]" * 40)}},
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "y" * 70_000}}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": f"f{index}"}} for index in range(129)]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.allowed_tools"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [FUNCTION]}, "functions"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "y"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "[1]"}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_cannot_be_served_is_named(gateway: RunningGateway, fields: dict[str, Any], param: str) -> None:
    """400, before anything is placed."""
    reply = ask(gateway, CHAT, OPTIONS | fields)

    assert (reply.status, reply.body["error"]["param"]) == (400, param)


def test_a_model_without_a_known_format_refuses_tools(loop: Loop, cluster: FakeCluster) -> None:
    """By a setting here."""
    with loop.running(cluster, tool_call_parser="none", reasoning_parser="none") as gateway:
        assert ask(gateway, CHAT, OPTIONS).error == (400, "tools", "invalid_value")
        reply = ask(gateway, CHAT, {"model": MODEL, "messages": MESSAGES})

    assert "reasoning_content" not in reply.body["choices"][0]["message"]


def test_a_strict_schema_to_which_calls_cannot_be_held_is_named(loop: Loop, cluster: FakeCluster) -> None:
    """Unquoted strings have no pattern; a choice of texts they can have, and tools that are not strict anything."""
    patterned = {"type": "object", "properties": {"city": {"type": "string", "pattern": "^A"}}}
    chosen = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Aarau"]}}}
    field = "tools[1].function.parameters.properties.city.pattern"
    with loop.running(cluster, tool_call_parser="qwen_coder") as gateway:
        for parameters, is_strict, error in ((patterned, True, field), (chosen, True, None), (patterned, False, None)):
            function = FUNCTION | {"name": "go", "parameters": parameters, "strict": is_strict}
            reply = ask(gateway, CHAT, OPTIONS | {"tools": [TOOL, {"type": "function", "function": function}]})
            assert (reply.body["error"]["param"] if reply.status == 400 else None) == error


def test_models_say_which_formats_they_have(gateway: RunningGateway) -> None:
    """As they were found in the template."""
    (model,) = ask(gateway, "/v1/models").body["data"]

    assert (model["tool_call_parser"], model["reasoning_parser"]) == ("hermes", "think")


def test_a_conversation_with_tools_can_be_tokenized(gateway: RunningGateway, model_dir: Path) -> None:
    """As it would be for an answer."""
    body = {"messages": MESSAGES, "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": True}}
    reply = ask(gateway, "/tokenize", body)

    assert reply.body["tokens"] == _prompt_of(model_dir, MESSAGES, tools=[TOOL], enable_thinking=True)


def test_a_form_of_the_output_leaves_the_model_free_to_call(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """The answer has the form, or is calls; a model that must call has no answer that could have one."""
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}}
    called = ask(gateway, CHAT, OPTIONS | form).body["choices"][0]
    answer_with(cluster, '{"a": 1}')
    told = ask(gateway, CHAT, OPTIONS | form).body["choices"][0]
    lark = cluster.decodes[0].requests[-1].sampling.structured_output.lark
    forced = ask(gateway, CHAT, OPTIONS | form | {"tool_choice": "required"})

    assert called["finish_reason"] == "tool_calls"
    assert (told["message"]["content"], told["finish_reason"]) == ('{"a": 1}', "stop")
    assert "(answer | calls)" in lark
    assert forced.error == (400, "tools", "invalid_value")
