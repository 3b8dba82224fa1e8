"""Rows of /v1/responses."""

from __future__ import annotations

from typing import Any

from baton.gateway.api.responses.input import sealed
from gateway.api.parameters.table import Row, accepted, answered, ignored, not_found, prompted, refused, sampled
from gateway.tool_models import ANSWER, CALL, FUNCTION, REASONING

TURN: dict[str, Any] = {"role": "user", "content": "x"}
_TOOL: dict[str, Any] = {"type": "function", **FUNCTION}
_OFFERED = {"type": "function", "function": FUNCTION}
_CALL = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "f", "arguments": "{}"}
_CALLED = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "rain"}
_RESULT = {"role": "tool", "content": "rain"}
_REASONED = {"role": "assistant", "content": "y", "reasoning_content": "hm"}
_LOGPROBS = {"include": ["message.output_text.logprobs"]}


def _called(field: str) -> Row:
    return Row(f"input[].{field}", {"input": [TURN, _CALL, _OUTPUT]}, prompted([TURN, _CALLED, _RESULT]))


def _summary(field: str, content: Any) -> Row:
    items = [TURN, {"type": "reasoning", field: content}, {"role": "assistant", "content": "y"}, TURN]
    return Row(f"input[].{field}", {"input": items}, prompted([TURN, _REASONED, TURN]))


def _calls(seen: Any) -> list[str]:
    return [item["type"] for item in seen.reply.body["output"]]


RESPONSES_ROWS = [
    Row("model", {"model": "other"}, not_found),
    Row("input", {"input": "hello"}, prompted([{"role": "user", "content": "hello"}])),
    Row("input", {"input": [TURN, TURN]}, prompted([TURN, TURN])),
    Row("input[].type", {"input": [{"type": "item_reference"}]}, refused("input[0].type")),
    Row("input[].role", {"input": [TURN | {"role": "developer"}]}, prompted([{"role": "system", "content": "x"}])),
    Row("input[].content", {"input": [TURN | {"content": "z"}]}, prompted([TURN | {"content": "z"}])),
    Row(
        "input[].content[].type",
        {"input": [TURN | {"content": [{"type": "input_file"}]}]},
        refused("input[0].content[0].type"),
    ),
    Row(
        "input[].content[].text",
        {"input": [TURN | {"content": [{"type": "input_text", "text": "ab"}]}]},
        prompted([TURN | {"content": "ab"}]),
    ),
    Row(
        "input[].content[].logprobs",
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "logprobs": [{}]}]}, TURN]},
        prompted([{"role": "assistant", "content": "a"}, TURN]),
    ),
    Row(
        "input[].content[].annotations",
        {"input": [TURN | {"content": [{"type": "input_text", "text": "a", "annotations": [1]}]}]},
        ignored("input[].content[].annotations"),
    ),
    *(_called(field) for field in ("id", "status", "call_id", "name", "arguments", "output")),
    _summary("summary", [{"type": "summary_text", "text": "hm"}]),
    _summary("content", [{"type": "reasoning_text", "text": "hm"}]),
    _summary("encrypted_content", sealed("hm")),
    Row(
        "input[].encrypted_content",
        {"input": [TURN, {"type": "reasoning", "encrypted_content": "baton1.%"}]},
        refused("input[1].encrypted_content"),
    ),
    Row("input[].phase", {"input": [TURN | {"phase": "commentary"}]}, ignored("input[].phase")),
    Row("input[].type", {"input": [TURN, {"type": "web_search_call"}]}, ignored("input[web_search_call]")),
    Row("instructions", {"instructions": "y"}, prompted([{"role": "system", "content": "y"}, TURN])),
    Row("max_output_tokens", {"max_output_tokens": 1}, sampled(max_token_count=1)),
    Row("max_output_tokens", {"max_output_tokens": 1}, answered("status", value="incomplete")),
    Row("temperature", {"temperature": 0.5}, sampled(temperature=0.5)),
    Row("top_p", {"top_p": 0.5}, sampled(top_p=0.5)),
    Row("stream", {"stream": True}, lambda seen: seen.events[-1]["type"] == "response.completed"),
    Row("stream_options", {"stream_options": {}}, refused("stream_options")),
    Row("ignore_eos", {"ignore_eos": True}, sampled(ignore_eos=True)),
    Row("min_tokens", {"min_tokens": 1}, sampled(min_token_count=1)),
    Row(
        "stream_options.include_obfuscation",
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        accepted,
    ),
    Row("user", {"user": "me"}, answered("user", value="me")),
    Row("prompt_cache_key", {"prompt_cache_key": "k"}, accepted),
    Row("safety_identifier", {"safety_identifier": "me"}, accepted),
    Row("metadata", {"metadata": {"a": "b"}}, answered("metadata", value={"a": "b"})),
    Row("tools", {"tools": [_TOOL]}, prompted([TURN], tools=[_OFFERED])),
    Row(
        "tools",
        {"tools": [_TOOL]},
        lambda seen: _calls(seen) == ["reasoning", "message", *["function_call"] * 2],
        ANSWER,
    ),
    Row("tools[].type", {"tools": [{"type": "web_search"}]}, ignored("tools[web_search]")),
    Row("tools[].name", {"tools": [_TOOL | {"name": "a b"}]}, refused("tools[0].name")),
    Row(
        "tools[].description",
        {"tools": [_TOOL | {"description": "O"}]},
        prompted([TURN], tools=[{"type": "function", "function": FUNCTION | {"description": "O"}}]),
    ),
    Row("tools[].parameters", {"tools": [_TOOL | {"parameters": {"type": "array"}}]}, refused("tools[0].parameters")),
    Row(
        "tools[].strict",
        {"tools": [_TOOL | {"strict": True}]},
        lambda seen: "(body)*" in seen.sampling.structured_output.lark,
    ),
    Row("tool_choice", {"tools": [_TOOL], "tool_choice": "none"}, prompted([TURN])),
    Row("tool_choice", {"tool_choice": "required"}, refused("tool_choice")),
    Row("tool_choice.type", {"tools": [_TOOL], "tool_choice": {"type": "mcp"}}, refused("tool_choice.type")),
    Row(
        "tool_choice.name",
        {"tools": [_TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
        lambda seen: "get_weather" in seen.sampling.structured_output.lark,
        CALL,
    ),
    *(
        Row(
            f"tool_choice.{field}",
            {"tools": [_TOOL], "tool_choice": {"type": "allowed_tools", field: "x"}},
            refused(f"tool_choice.{field}"),
        )
        for field in ("mode", "tools")
    ),
    Row(
        "parallel_tool_calls",
        {"tools": [_TOOL], "parallel_tool_calls": False},
        lambda seen: _calls(seen).count("function_call") == 1,
        ANSWER,
    ),
    Row("reasoning", {"reasoning": {}}, accepted),
    Row("reasoning.effort", {"reasoning": {"effort": "low"}}, ignored("reasoning.effort")),
    *(
        Row(f"reasoning.{field}", {"reasoning": {field: "auto"}}, ignored(f"reasoning.{field}"))
        for field in ("summary", "generate_summary", "context")
    ),
    Row(
        "include", _LOGPROBS, lambda seen: seen.reply.body["output"][0]["content"][0]["logprobs"][0]["logprob"] == -0.5
    ),
    Row(
        "include",
        {"include": ["reasoning.encrypted_content"]},
        lambda seen: seen.reply.body["output"][0]["encrypted_content"] == sealed(REASONING),
        ANSWER,
    ),
    Row("top_logprobs", _LOGPROBS | {"top_logprobs": 2}, sampled(top_logprob_count=2)),
    Row("top_logprobs", {"top_logprobs": 2}, refused("top_logprobs")),
    *(
        Row(field, {field: value}, refused(field))
        for field, value in {
            "background": True,
            "conversation": "c",
            "moderation": {},
            "previous_response_id": "r",
            "prompt": {"id": "p"},
        }.items()
    ),
]
