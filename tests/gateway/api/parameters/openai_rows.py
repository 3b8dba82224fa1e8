"""Rows of /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from typing import Any

from gateway.api.parameters.table import (
    Row,
    Seen,
    accepted,
    answered,
    ignored,
    not_found,
    prompted,
    refused,
    sampled,
    tokens_of,
)
from gateway.tool_models import ANSWER, ARGUMENTS, CALL, FUNCTION, TOOL

TURN: dict[str, Any] = {"role": "user", "content": "x"}
STREAM = {"stream": True}
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "rain"}
_RENDERED_CALL = CALLED | {"tool_calls": [{"id": "c1", "function": {"name": "get_weather", "arguments": {}}}]}
_FORCED = {"type": "function", "function": {"name": "get_weather"}}


def _has_lark(*parts: str) -> Any:
    return lambda seen: all(part in seen.sampling.structured_output.lark for part in parts)


def _last_usage(seen: Seen) -> bool:
    return seen.events[-1]["usage"]["completion_tokens"] == len(tokens_of(seen, "hello world"))


def _differ(seen: Seen) -> bool:
    return len(seen.reply.body["choices"]) == 3 and len({request.sampling.seed for request in seen.requests}) == 3


def _ends_with(text: str) -> Any:
    """Expect a text and the end by a stop string."""

    def check(seen: Seen) -> bool:
        choice = seen.reply.body["choices"][0]
        found = choice["text"] if "text" in choice else choice["message"]["content"]
        return bool(found == text and choice["finish_reason"] == "stop")

    return check


def _has_token_ids(seen: Seen) -> bool:
    """Expect the tokens of prompt and output, at the places where vLLM has them."""
    bodies = seen.events or [seen.reply.body]
    choices = [choice for body in bodies for choice in body["choices"]]
    prompts = [holder["prompt_token_ids"] for holder in (*bodies, *choices) if "prompt_token_ids" in holder]
    output = [token_id for choice in choices for token_id in choice.get("token_ids", ())]
    return prompts == [list(seen.requests[0].prompt_token_ids)] and output == tokens_of(seen, "hello world")


def _has_bad_words(seen: Seen) -> bool:
    """Expect the tokens of the word, and those that it has after a space."""
    words = [list(word.token_ids) for word in seen.sampling.bad_words]
    return words[0] == tokens_of(seen, "wo") and all(word == tokens_of(seen, " wo") for word in words[1:])


def message_rows(*, options: dict[str, Any]) -> list[Row]:
    """Return the rows of messages, which several endpoints take; `options` are those of their templates."""

    def one(field: str, message: dict[str, Any], rendered: dict[str, Any]) -> Row:
        return Row(f"messages[].{field}", {"messages": [message]}, prompted([rendered], **options))

    def part(field: str, part: dict[str, Any]) -> Row:
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"} | part]}]}
        return Row(f"messages[].content[].{field}", body, refused(f"messages[0].content[0].{field}"))

    def call(field: str, **changes: Any) -> Row:
        entry = CALLED["tool_calls"][0] | changes
        messages = [TURN, CALLED | {"tool_calls": [entry]}, RESULT]
        rendered = prompted([TURN, _RENDERED_CALL, RESULT], **options)
        return Row(f"messages[].tool_calls{field}", {"messages": messages}, rendered)

    def wrong_call(field: str, changes: dict[str, Any], param: str) -> Row:
        messages = [TURN, CALLED | {"tool_calls": [CALLED["tool_calls"][0] | changes]}]
        return Row(
            f"messages[].tool_calls[]{field}", {"messages": messages}, refused(f"messages[1].tool_calls[0]{param}")
        )

    def unserved(field: str) -> Row:
        return Row(f"messages[].{field}", {"messages": [TURN | {field: {"x": 1}}]}, refused(f"messages[0].{field}"))

    return [
        Row("messages", {"messages": [TURN, TURN]}, prompted([TURN, TURN], **options)),
        one("role", {"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        one("content", TURN | {"content": "other"}, TURN | {"content": "other"}),
        one("content[].text", TURN | {"content": [{"type": "text", "text": "ab"}]}, TURN | {"content": "ab"}),
        part("type", {"type": "image_url", "text": None}),
        one("name", TURN | {"name": "Ada"}, TURN | {"name": "Ada"}),
        call(""),
        call("[].id", id="c1"),
        call("[].index", index=0),
        call("[].function", function={"name": "get_weather", "arguments": ""}),
        wrong_call(".type", {"type": "custom"}, ".type"),
        wrong_call(".function.name", {"function": {"arguments": "{}"}}, ".function.name"),
        wrong_call(".function.arguments", {"function": {"name": "f", "arguments": "[]"}}, ".function.arguments"),
        Row(
            "messages[].tool_call_id", {"messages": [TURN | {"tool_call_id": "c"}]}, refused("messages[0].tool_call_id")
        ),
        one(
            "reasoning_content",
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        ),
        one(
            "reasoning",
            {"role": "assistant", "content": "x", "reasoning": "hm"},
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        ),
        *(unserved(field) for field in ("refusal", "audio", "function_call")),
        Row("messages[].annotations", {"messages": [TURN | {"annotations": [1]}]}, ignored("messages[].annotations")),
    ]


def tool_rows() -> list[Row]:
    """Return the rows of declared tools, in the words of chat completions."""

    def wrong(field: str, function: dict[str, Any], param: str) -> Row:
        tools = [{"type": "function", "function": FUNCTION | function}]
        return Row(f"tools[].{field}", {"tools": tools}, refused(f"tools[0].{param}"))

    tool = {"type": "function", "function": FUNCTION | {"description": "Other."}}
    return [
        Row("tools", {"tools": [TOOL]}, prompted([TURN], tools=[TOOL])),
        Row("tools[].type", {"tools": [{"type": "custom"}]}, ignored("tools[custom]")),
        Row("tools[].function", {"tools": [{"type": "function"}]}, refused("tools[0].function")),
        wrong("function.name", {"name": "a b"}, "function.name"),
        wrong("function.parameters", {"parameters": {"type": "array"}}, "function.parameters"),
        Row("tools[].function.description", {"tools": [tool]}, prompted([TURN], tools=[tool])),
    ]


_COMMON = [
    Row("model", {"model": "other"}, not_found),
    Row("stream", STREAM, lambda seen: seen.reply.headers["content-type"].startswith("text/event-stream")),
    Row("stream_options", {"stream_options": {}}, refused("stream_options")),
    Row("stream_options.include_usage", STREAM | {"stream_options": {"include_usage": True}}, _last_usage),
    Row("stream_options.include_obfuscation", STREAM | {"stream_options": {"include_obfuscation": False}}, accepted),
    Row("n", {"n": 3}, _differ),
    Row("n", {"n": 17}, refused("n")),
    Row("stop", {"stop": [" wor"]}, answered("choices", 0, "finish_reason", value="stop")),
    Row("seed", {"seed": 7}, sampled(seed=7)),
    Row("temperature", {"temperature": 0.5}, sampled(temperature=0.5)),
    Row("top_p", {"top_p": 0.5}, sampled(top_p=0.5)),
    Row("top_k", {"top_k": 5}, sampled(top_k=5)),
    Row("top_k", {"top_k": -1}, sampled(top_k=0)),
    Row("min_p", {"min_p": 0.25}, sampled(min_p=0.25)),
    Row("presence_penalty", {"presence_penalty": 1}, sampled(presence_penalty=1)),
    Row("frequency_penalty", {"frequency_penalty": -1}, sampled(frequency_penalty=-1)),
    Row("repetition_penalty", {"repetition_penalty": 1.5}, sampled(repetition_penalty=1.5)),
    Row("logit_bias", {"logit_bias": {"5": 2}}, sampled(logit_bias={5: 2.0})),
    Row("max_tokens", {"max_tokens": 1}, sampled(max_token_count=1)),
    Row("max_tokens", {"max_tokens": 1}, answered("choices", 0, "finish_reason", value="length")),
    Row("min_tokens", {"min_tokens": 2}, sampled(min_token_count=2)),
    Row(
        "stream_options.continuous_usage_stats",
        STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        lambda seen: all(event["usage"]["total_tokens"] for event in seen.events) and _last_usage(seen),
    ),
    Row("stop_token_ids", {"stop_token_ids": [9]}, sampled(stop_token_ids=[9])),
    Row("ignore_eos", {"ignore_eos": True}, sampled(ignore_eos=True)),
    Row("stop", {"stop": [" wor"], "include_stop_str_in_output": True}, _ends_with("hello wor")),
    Row("include_stop_str_in_output", {"stop": " wor", "include_stop_str_in_output": True}, _ends_with("hello wor")),
    Row("return_token_ids", {"return_token_ids": True}, _has_token_ids),
    Row("return_token_ids", {"return_token_ids": True, "stream": True}, _has_token_ids),
    Row("return_token_ids", {"return_token_ids": False}, lambda seen: b"token_ids" not in seen.reply.data),
    Row("stop", {"stop": "world"}, answered("choices", 0, "stop_reason", value="world")),
    Row("stop", {"stop": "world", "stream": True}, lambda seen: b'"stop_reason":"world"' in seen.reply.data),
    Row("bad_words", {"bad_words": ["wo"]}, _has_bad_words),
    Row("bad_words", {"bad_words": [" "]}, refused("bad_words[0]")),
    Row("bad_words", {"bad_words": ["x"] * 129}, refused("bad_words")),
    Row("cache_salt", {"cache_salt": "s"}, lambda seen: seen.requests[0].cache_salt == "s"),
    Row("prompt_cache_key", {"prompt_cache_key": "k"}, accepted),
    Row("priority", {"priority": -3}, lambda seen: seen.requests[0].priority == -3),
    Row("priority", {"priority": 101}, refused("priority")),
    Row("user", {"user": "me"}, accepted),
    Row("safety_identifier", {"safety_identifier": "me"}, accepted),
    Row("metadata", {"metadata": {"a": "b"}}, accepted),
]

CHAT_ROWS = [
    *_COMMON,
    *message_rows(options={}),
    *tool_rows(),
    Row("tools", {"tools": [TOOL]}, answered("choices", 0, "finish_reason", value="tool_calls"), ANSWER),
    Row("tools[].function.strict", {"tools": [TOOL | {"function": FUNCTION | {"strict": True}}]}, _has_lark("(body)*")),
    Row("stop", {"stop": "world"}, answered("choices", 0, "message", "content", value="hello ")),
    Row("max_completion_tokens", {"max_completion_tokens": 2}, sampled(max_token_count=2)),
    Row(
        "logprobs",
        {"logprobs": True},
        lambda seen: {each["logprob"] for each in seen.reply.body["choices"][0]["logprobs"]["content"]} == {-0.5},
    ),
    Row("top_logprobs", {"logprobs": True, "top_logprobs": 3}, sampled(top_logprob_count=3)),
    Row("top_logprobs", {"top_logprobs": 3}, refused("top_logprobs")),
    Row("prompt_logprobs", {"prompt_logprobs": 1}, lambda seen: len(seen.reply.body["prompt_logprobs"][-1]) == 2),
    Row("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}, refused("prompt_logprobs")),
    Row("tool_choice", {"tools": [TOOL], "tool_choice": "none"}, prompted([TURN]), CALL),
    Row("tool_choice", {"tools": [TOOL], "tool_choice": "required"}, _has_lark("get_weather", "{0,31}"), CALL),
    Row("tool_choice", {"tool_choice": "required"}, refused("tool_choice")),
    Row("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "custom"}}, refused("tool_choice.type")),
    Row("tool_choice.function", {"tools": [TOOL], "tool_choice": _FORCED}, _has_lark("get_weather"), CALL),
    Row(
        "tool_choice.function.name",
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        refused("tool_choice.function.name"),
    ),
    *(
        Row(
            f"tool_choice.{kind}",
            {"tools": [TOOL], "tool_choice": {"type": kind, kind: {}}},
            refused(f"tool_choice.{kind}"),
        )
        for kind in ("allowed_tools", "custom")
    ),
    Row(
        "parallel_tool_calls",
        {"tools": [TOOL], "parallel_tool_calls": False},
        lambda seen: (
            [call["function"]["arguments"] for call in seen.reply.body["choices"][0]["message"]["tool_calls"]]
            == [ARGUMENTS]
        ),
        ANSWER,
    ),
    Row(
        "chat_template_kwargs",
        {"chat_template_kwargs": {"enable_thinking": True}},
        prompted([TURN], enable_thinking=True),
    ),
    Row("add_generation_prompt", {"add_generation_prompt": False}, prompted([TURN], add_generation_prompt=False)),
    Row(
        "continue_final_message",
        {"continue_final_message": True, "add_generation_prompt": False},
        prompted([TURN], add_generation_prompt=False, continue_final_message=True),
    ),
    Row("continue_final_message", {"continue_final_message": True}, refused("continue_final_message")),
    Row("chat_template_kwargs", {"chat_template_kwargs": {"x": 1}}, refused("chat_template_kwargs.x")),
    Row("reasoning_effort", {"reasoning_effort": "high"}, ignored("reasoning_effort")),
    *(
        Row(field, {field: value}, refused(field))
        for field, value in {
            "functions": [FUNCTION],
            "function_call": {"name": "f"},
            "modalities": ["audio"],
            "audio": {"voice": "x"},
        }.items()
    ),
]

COMPLETION_ROWS = [
    *_COMMON,
    Row("prompt", {"prompt": [5, 6]}, lambda seen: list(seen.requests[0].prompt_token_ids) == [5, 6]),
    Row("prompt", {"prompt": ["a", "b"]}, lambda seen: len(seen.reply.body["choices"]) == 2),
    Row("stop", {"stop": "world"}, answered("choices", 0, "text", value="hello ")),
    Row("logprobs", {"logprobs": 2}, sampled(top_logprob_count=2)),
    Row("echo", {"echo": True}, answered("choices", 0, "text", value="xhello world")),
    Row("echo", {"echo": True, "max_tokens": 0}, answered("choices", 0, "text", value="x")),
    Row(
        "logprobs",
        {"prompt": [5, 6], "logprobs": 0, "echo": True, "max_tokens": 0},
        answered("choices", 0, "logprobs", "token_logprobs", value=[None, -1]),
    ),
    Row(
        "prompt_logprobs",
        {"prompt": [5, 6], "prompt_logprobs": 0},
        lambda seen: list(seen.reply.body["choices"][0]["prompt_logprobs"][1]) == ["6"],
    ),
    Row("suffix", {"suffix": "x"}, refused("suffix")),
    Row("best_of", {"best_of": 2}, refused("best_of")),
]
