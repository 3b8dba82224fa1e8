"""From the messages and tools of OpenAI's bodies to those of chat templates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import invalid, missing, refused, unsupported
from baton.gateway.api.openai.schema import ChatBody, ContentPart, Message, ToolCallParam, ToolParam
from baton.gateway.generation.tools import (
    CHAT_FIELDS,
    MAX_MESSAGES,
    NO_PARAMETERS,
    ChatTurn,
    ToolUse,
    call_of_answer,
    choose,
    choose_named,
    parsed_arguments,
    read_tools,
    template_message,
)
from baton.text.tokenizer import Message as TemplateMessage
from baton.text.tools import Tool


def chat_messages(messages: Sequence[Message]) -> tuple[TemplateMessage, ...]:
    """Return a conversation for chat templates; raise ApiError or InvalidFieldError naming a message not served."""
    if not messages:
        raise refused("messages", "Invalid value for `messages`: expected at least one message", code="empty_array")
    if len(messages) > MAX_MESSAGES:
        raise invalid("messages", f"expected at most {MAX_MESSAGES}, got {len(messages)}")
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def _message(param: str, message: Message) -> TemplateMessage:
    calls = enumerate(message.tool_calls or ())
    turn = ChatTurn(
        role=message.role,
        content=None if message.content is None else _text(param, message.content),
        name=message.name,
        calls=[_call(f"{param}.tool_calls[{index}]", call) for index, call in calls],
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning or "",
        reasoning_field="reasoning_content" if message.reasoning_content else "reasoning",
    )
    return template_message(param, turn)


def _call(param: str, call: ToolCallParam) -> dict[str, object]:
    if call.type != "function":
        raise refused(f"{param}.type", f"Unsupported parameter: `{param}.type`: only functions are served")
    arguments = parsed_arguments(f"{param}.function.arguments", call.function.arguments)
    return call_of_answer(call.id, call.function.name, arguments)


def _text(param: str, content: str | list[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    for part_index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            name = f"{param}.content[{part_index}].type"
            raise unsupported(name, f"only parts of type text are served, got `{part.type}`")
    return "".join(part.text or "" for part in content)


def chat_tools(body: ChatBody, exchange: Exchange) -> ToolUse:
    """Return a body's functions and their use; raise ApiError or InvalidFieldError naming the parameter that is bad."""
    tools = declared_tools(body.tools, exchange)
    is_parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice
    if isinstance(choice, str) or choice is None:
        return choose(ToolUse(tools, is_parallel=is_parallel), choice or "auto")
    if choice.type != "function" or choice.function is None:
        raise unsupported("tool_choice.type", f"only functions can be chosen, got `{choice.type}`")
    return choose_named(ToolUse(tools, is_parallel=is_parallel), choice.function.name, "tool_choice.function.name")


def declared_tools(params: Sequence[ToolParam] | None, exchange: Exchange) -> tuple[Tool, ...]:
    """Return tools that were declared in the words of chat completions; see `chat_tools` for the errors."""
    return read_tools(params, partial(_tool, exchange), CHAT_FIELDS)


def _tool(exchange: Exchange, param: str, tool: ToolParam) -> Tool | None:
    if tool.type != "function":
        exchange.ignore_tool(param, tool.type)
        return None
    function = tool.function
    if function is None:
        raise missing(f"{param}.function")
    parameters = function.parameters or NO_PARAMETERS
    return Tool(function.name, parameters, function.description, is_strict=bool(function.strict))
