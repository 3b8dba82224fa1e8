"""From the tools of Anthropic's messages to what the gateway's core knows of tools."""

from __future__ import annotations

from functools import partial

from baton.errors import InvalidFieldError
from baton.gateway.api.anthropic.schema import ConversationBody, ToolDefinition
from baton.gateway.api.endpoint import Exchange
from baton.gateway.generation.tools import NO_PARAMETERS, ToolFields, ToolUse, choose, choose_named, read_tools
from baton.text.tools import Tool

_FIELDS = ToolFields("name", "input_schema", "strict")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def message_tools(body: ConversationBody, exchange: Exchange) -> ToolUse:
    """Return a body's tools, Anthropic's aside, and use; raise ApiError or InvalidFieldError naming what is bad."""
    tools = read_tools(body.tools, partial(_tool, exchange), _FIELDS)
    choice = body.tool_choice
    use = ToolUse(tools, is_parallel=not (choice and choice.disable_parallel_tool_use), fields=_FIELDS)
    if choice is None:
        return use
    if choice.type == "tool" and choice.name is not None:
        return choose_named(use, choice.name, "tool_choice.name")
    if choice.type not in _CHOICES:
        raise InvalidFieldError("tool_choice.type", "expected auto, any, none, or tool with a name")
    if choice.name is not None:
        raise InvalidFieldError("tool_choice.name", "expected only with type tool")
    return choose(use, _CHOICES[choice.type])


def _tool(exchange: Exchange, param: str, tool: ToolDefinition) -> Tool | None:
    if tool.type not in (None, "custom"):
        exchange.ignore_tool(param, tool.type)
        return None
    return Tool(tool.name, tool.input_schema or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))
