"""From the tools of a chat completion to what the gateway's core knows of tools."""

from __future__ import annotations

from collections.abc import Sequence

from baton.errors import InvalidFieldError
from baton.gateway.openai_errors import refused
from baton.gateway.openai_schema import ChatBody, ToolParam
from baton.gateway.tool_use import CHAT_FIELDS, ToolUse, read_tools
from baton.text.tools import Tool

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
