"""Rows of /v1/messages, /v1/messages/count_tokens, /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from gateway.api.parameters.openai_rows import message_rows, tool_rows
from gateway.api.parameters.table import Row, accepted, answered, ignored, not_found, prompted, refused, sampled
from gateway.tool_models import ANSWER, CALL, FUNCTION, TOOL

TURN: dict[str, Any] = {"role": "user", "content": "x"}
_TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
_USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}, "caller": None}
_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "rain", "is_error": False}
_THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
_CONVERSATION = [TURN, {"role": "assistant", "content": [_THOUGHT, _USE]}, {"role": "user", "content": [_RESULT]}]
_RENDERED = [
    TURN,
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "tool", "content": "rain"},
]


def _block(field: str, value: Any) -> Row:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", field: value}]}]}
    return Row(f"messages[].content[].{field}", body, ignored(f"messages[].content[].{field}"))


def _hint(field: str, value: Any) -> Row:
    return Row(f"tools[].{field}", {"tools": [_TOOL | {field: value}]}, ignored(f"tools[].{field}"))


def _in_conversation(field: str) -> Row:
    return Row(f"messages[].content[].{field}", {"messages": _CONVERSATION}, prompted(_RENDERED))


_SHARED = [
    Row("model", {"model": "other"}, not_found),
    Row("messages", {"messages": [TURN, TURN]}, prompted([TURN, TURN])),
    Row("messages[].role", {"messages": [TURN | {"role": "robot"}]}, refused("messages[0].role")),
    Row("messages[].content", {"messages": [TURN | {"content": "z"}]}, prompted([TURN | {"content": "z"}])),
    Row(
        "messages[].content[].type",
        {"messages": [TURN | {"content": [{"type": "image"}]}]},
        refused("messages[0].content[0].type"),
    ),
    Row(
        "messages[].content[].text",
        {"messages": [TURN | {"content": [{"type": "text", "text": "ab"}]}]},
        prompted([TURN | {"content": "ab"}]),
    ),
    *map(
        _in_conversation,
        ("thinking", "signature", "id", "name", "input", "tool_use_id", "content", "is_error", "caller"),
    ),
    _block("cache_control", {"type": "other"}),
    _block("citations", [1]),
    Row("system", {"system": "y"}, prompted([{"role": "system", "content": "y"}, TURN])),
    Row("cache_control", {"cache_control": {"type": "ephemeral"}}, accepted),
    Row("cache_control", {"cache_control": {"type": "other"}}, ignored("cache_control")),
    Row("mcp_servers", {"mcp_servers": [{}]}, ignored("mcp_servers")),
    Row("output_config", {"output_config": {}}, accepted),
    Row("output_config.effort", {"output_config": {"effort": "low"}}, ignored("output_config.effort")),
    Row("speed", {"speed": "fast"}, ignored("speed")),
    Row("thinking", {"thinking": {"type": "disabled"}}, prompted([TURN], enable_thinking=False)),
    Row("thinking.type", {"thinking": {"type": "enabled"}}, prompted([TURN], enable_thinking=True)),
    Row("thinking.type", {"thinking": {"type": "sometimes"}}, refused("thinking.type")),
    Row(
        "thinking.budget_tokens",
        {"thinking": {"type": "adaptive", "budget_tokens": 9}},
        ignored("thinking.budget_tokens"),
    ),
    Row("thinking.display", {"thinking": {"type": "adaptive", "display": "x"}}, ignored("thinking.display")),
    Row("tool_choice", {"tools": [_TOOL], "tool_choice": {"type": "none"}}, prompted([TURN])),
    Row("tool_choice.type", {"tools": [_TOOL], "tool_choice": {"type": "some"}}, refused("tool_choice.type")),
    Row(
        "tool_choice.name",
        {"tools": [_TOOL], "tool_choice": {"type": "tool", "name": "x"}},
        refused("tool_choice.name"),
    ),
    Row("tools", {"tools": [_TOOL]}, prompted([TURN], tools=[TOOL])),
    Row("tools[].name", {"tools": [_TOOL | {"name": "a b"}]}, refused("tools[0].name")),
    Row(
        "tools[].input_schema",
        {"tools": [_TOOL | {"input_schema": {"type": "array"}}]},
        refused("tools[0].input_schema"),
    ),
    Row(
        "tools[].description",
        {"tools": [_TOOL | {"description": "O"}]},
        prompted([TURN], tools=[{"type": "function", "function": FUNCTION | {"description": "O"}}]),
    ),
    Row("tools[].type", {"tools": [_TOOL | {"type": "bash_20250124"}]}, ignored("tools[bash_20250124]")),
    _hint("cache_control", {"type": "x"}),
    _hint("allowed_callers", ["x"]),
    _hint("defer_loading", True),
    _hint("input_examples", [{}]),
    Row("tools[].eager_input_streaming", {"tools": [_TOOL | {"eager_input_streaming": True}]}, accepted),
]

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}


def _form(field: str, form: dict[str, Any], effect: Any) -> Row:
    return Row(f"output_config.format{field}", {"output_config": {"format": form}}, effect)


MESSAGES_ROWS = [
    *_SHARED,
    Row("tools", {"tools": [_TOOL], "max_tokens": 999}, answered("stop_reason", value="tool_use"), ANSWER),
    Row(
        "tools[].strict",
        {"tools": [_TOOL | {"strict": True}]},
        lambda seen: "(body)*" in seen.sampling.structured_output.lark,
    ),
    Row(
        "tool_choice.type",
        {"tools": [_TOOL], "tool_choice": {"type": "any"}},
        lambda seen: "{0,31}" in seen.sampling.structured_output.lark,
        CALL,
    ),
    Row(
        "tool_choice.disable_parallel_tool_use",
        {"tools": [_TOOL], "max_tokens": 999, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        lambda seen: [block["type"] for block in seen.reply.body["content"]].count("tool_use") == 1,
        ANSWER,
    ),
    _form(
        "",
        {"type": "json_schema", "schema": _SCHEMA},
        lambda seen: "integer" in seen.sampling.structured_output.lark,
    ),
    _form(".type", {"type": "text"}, refused("output_config.format.type")),
    _form(".schema", {"type": "json_schema"}, refused("output_config.format.schema")),
    Row("max_tokens", {"max_tokens": 2}, sampled(max_token_count=2)),
    Row("metadata", {"metadata": {}}, accepted),
    Row("metadata.user_id", {"metadata": {"user_id": "me"}}, accepted),
    Row("stop_sequences", {"stop_sequences": ["world"], "max_tokens": 99}, answered("stop_sequence", value="world")),
    Row("stream", {"stream": True}, lambda seen: seen.events[-1]["type"] == "message_stop"),
    Row("temperature", {"temperature": 0.5}, sampled(temperature=0.5)),
    Row("top_k", {"top_k": 5}, sampled(top_k=5)),
    Row("ignore_eos", {"ignore_eos": True}, sampled(ignore_eos=True)),
    Row("min_tokens", {"min_tokens": 1}, sampled(min_token_count=1)),
    Row("top_p", {"top_p": 0.5}, sampled(top_p=0.5)),
    *(
        Row(field, {field: value}, ignored(field))
        for field, value in {"container": "c", "context_management": {}, "diagnostics": {}, "service_tier": "x"}.items()
    ),
]

COUNT_ROWS = [
    *_SHARED,
    *(_form(field, {"type": "json_schema", "schema": _SCHEMA}, prompted([TURN])) for field in ("", ".type", ".schema")),
    Row("tools[].strict", {"tools": [_TOOL | {"strict": True}]}, prompted([TURN], tools=[TOOL])),
    Row(
        "tool_choice.disable_parallel_tool_use",
        {"tools": [_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        prompted([TURN], tools=[TOOL]),
    ),
]

_CHAT: dict[str, Any] = {"prompt": None, "messages": [TURN]}


def _tokenized(row: Row) -> Row:
    return row._replace(body={"prompt": None, "messages": [TURN], **row.body})


TOKENIZE_ROWS = [
    *map(_tokenized, message_rows(options={})),
    *map(_tokenized, tool_rows()),
    Row("tools[].function.strict", _CHAT | {"tools": [TOOL]}, prompted([TURN], tools=[TOOL])),
    Row("model", {"model": "other"}, not_found),
    Row("prompt", {"prompt": "hello"}, lambda seen: seen.reply.body["count"] == len(seen.reply.body["tokens"]) > 0),
    Row("add_special_tokens", {"add_special_tokens": False}, lambda seen: seen.reply.body["count"] == 1),
    Row(
        "add_generation_prompt", _CHAT | {"add_generation_prompt": False}, prompted([TURN], add_generation_prompt=False)
    ),
    Row("return_token_strs", {"return_token_strs": True}, answered("token_strs", value=["x"])),
    Row(
        "chat_template_kwargs",
        _CHAT | {"chat_template_kwargs": {"enable_thinking": True}},
        prompted([TURN], enable_thinking=True),
    ),
    Row("continue_final_message", _CHAT | {"continue_final_message": True}, refused("continue_final_message")),
    Row("chat_template", _CHAT | {"chat_template": "x"}, refused("chat_template")),
    Row("mm_processor_kwargs", _CHAT | {"mm_processor_kwargs": {"x": 1}}, refused("mm_processor_kwargs")),
]

DETOKENIZE_ROWS = [
    Row("model", {"model": "other"}, not_found),
    Row("tokens", {"tokens": [1]}, lambda seen: len(seen.reply.body["prompt"]) == 1),
]
