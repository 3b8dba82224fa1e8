"""From the messages of OpenAI's bodies to those of chat templates.

From the tools of a chat completion to what the gateway's core knows of tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.api.errors import ApiError, refused
from baton.gateway.api.openai.schema import MAX_MESSAGES, ChatBody, ContentPart, Message, ToolCallParam, ToolParam
from baton.gateway.generation.tools import CHAT_FIELDS, ToolUse, read_tools
from baton.text.tokenizer import Message as TemplateMessage
from baton.text.tools import Tool

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


NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}


def chat_tools(body: ChatBody) -> ToolUse:
    """Return the tools of a body and how they may be called.

    Raises:
        ApiError: 400, naming the parameter that is not served.
        InvalidFieldError: Naming the one that is wrong.
    """
    tools = declared_tools(body.tools)
    is_parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice
    if isinstance(choice, str) or choice is None:
        return choose(ToolUse(tools, is_parallel=is_parallel), choice or "auto")
    if choice.type != "function" or choice.function is None:
        text = f"Unsupported parameter: `tool_choice.type`: only functions can be chosen, got `{choice.type}`"
        raise refused("tool_choice.type", text, code="unsupported_parameter")
    return choose_named(ToolUse(tools, is_parallel=is_parallel), choice.function.name, "tool_choice.function.name")


def declared_tools(params: Sequence[ToolParam] | None) -> tuple[Tool, ...]:
    """Return tools that were declared in the words of chat completions; see `chat_tools` for the errors."""
    return read_tools(params, _tool, CHAT_FIELDS)


def choose(use: ToolUse, choice: str) -> ToolUse:
    """Return a use with OpenAI's word for how to call.

    Raises:
        InvalidFieldError: If the word is none of them, or needs tools that are not there.
    """
    if choice in ("none", "auto"):
        return ToolUse(use.tools, "none" if choice == "none" else "auto", "", use.is_parallel, use.fields)
    if choice != "required":
        raise InvalidFieldError("tool_choice", f"expected none, auto, required or a function, got {choice[:64]!r}")
    if not use.tools:
        raise InvalidFieldError("tool_choice", "`required` needs `tools`")
    return ToolUse(use.tools, "required", "", use.is_parallel, use.fields)


def choose_named(use: ToolUse, name: str, param: str) -> ToolUse:
    """Return a use whose one call is that of a tool.

    Raises:
        InvalidFieldError: If there is no such tool.
    """
    if name not in (tool.name for tool in use.tools):
        raise InvalidFieldError(param, f"`{name[:64]}` is none of `tools`")
    return ToolUse(use.tools, "required", name, is_parallel=False, fields=use.fields)


def _tool(param: str, tool: ToolParam) -> Tool:
    if tool.type != "function":
        text = f"Unsupported parameter: `{param}.type`: only functions are served, got `{tool.type}`"
        raise refused(f"{param}.type", text, code="unsupported_parameter")
    function = tool.function
    if function is None:
        name = f"{param}.function"
        raise refused(name, f"Missing required parameter: `{name}`", code="missing_required_parameter")
    parameters = function.parameters or NO_PARAMETERS
    return Tool(function.name, parameters, function.description, is_strict=bool(function.strict))
