"""From the messages of OpenAI's bodies to those of chat templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from baton.gateway.openai_errors import ApiError, refused
from baton.gateway.openai_schema import MAX_MESSAGES, ContentPart, Message, ToolCallParam
from baton.text.tokenizer import Message as TemplateMessage

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that are served, as chat templates know them."""


def chat_messages(messages: Sequence[Message]) -> tuple[TemplateMessage, ...]:
    """Return a conversation as chat templates know it.

    Raises:
        ApiError: 400, naming the message that cannot be served.
    """
    if not messages:
        raise refused("messages", "Invalid value for `messages`: expected at least one message", code="empty_array")
    if len(messages) > MAX_MESSAGES:
        text = f"Invalid value for `messages`: expected at most {MAX_MESSAGES}, got {len(messages)}"
        raise refused("messages", text, code="invalid_value")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def parsed_arguments(param: str, arguments: str) -> dict[str, object]:
    """Return the arguments of a call that is sent back, as chat templates know them.

    Raises:
        ApiError: 400, naming the parameter, if they are no JSON object.
    """
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(param, f"expected a JSON object: {error}") from error
    if not isinstance(parsed, dict):
        raise _wrong(param, "expected a JSON object")
    return parsed


def called(call_id: str, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return a call as chat templates know it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _message(param: str, message: Message) -> TemplateMessage:
    role = ROLES.get(message.role)
    if role is None:
        raise _wrong(f"{param}.role", f"`{message.role}` is none of {', '.join(ROLES)}")
    if message.content is None and not message.tool_calls:
        raise _wrong(f"{param}.content", "expected text")
    content = None if message.content is None else _text(param, message.content)
    fields: dict[str, object] = {"role": role, "content": content}
    if message.name is not None:
        fields["name"] = message.name
    return {**fields, **_assistant_fields(param, message), **_tool_fields(param, message)}


def _assistant_fields(param: str, message: Message) -> dict[str, object]:
    if message.role != "assistant":
        for field in ("tool_calls", "reasoning_content", "reasoning"):
            if getattr(message, field):
                raise _wrong(f"{param}.{field}", "expected only with role assistant")
        return {}
    fields: dict[str, object] = {}
    if reasoning := message.reasoning_content or message.reasoning:
        fields["reasoning_content"] = reasoning
    if message.tool_calls:
        calls = enumerate(message.tool_calls)
        fields["tool_calls"] = [_call(f"{param}.tool_calls[{index}]", call) for index, call in calls]
    return fields


def _call(param: str, call: ToolCallParam) -> dict[str, object]:
    if call.type != "function":
        raise refused(f"{param}.type", f"Unsupported parameter: `{param}.type`: only functions are served")
    arguments = parsed_arguments(f"{param}.function.arguments", call.function.arguments)
    return called(call.id, call.function.name, arguments)


def _tool_fields(param: str, message: Message) -> dict[str, object]:
    if message.role == "tool":
        if message.tool_call_id is None:
            raise _wrong(f"{param}.tool_call_id", "expected the id of the call that this answers")
        return {"tool_call_id": message.tool_call_id}
    if message.tool_call_id is not None:
        raise _wrong(f"{param}.tool_call_id", "expected only with role tool")
    return {}


def _text(param: str, content: str | list[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    for part_index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            name = f"{param}.content[{part_index}].type"
            text = f"Unsupported parameter: `{name}`: only parts of type text are served, got `{part.type}`"
            raise refused(name, text, code="unsupported_parameter")
        for field in ("image_url", "input_audio", "file", "refusal"):
            if getattr(part, field) is not None:
                name = f"{param}.content[{part_index}].{field}"
                raise refused(name, f"Unsupported parameter: `{name}`", code="unsupported_parameter")
    return "".join(part.text or "" for part in content)


def _wrong(param: str, problem: str) -> ApiError:
    return refused(param, f"Invalid value for `{param}`: {problem}", code="invalid_value")
