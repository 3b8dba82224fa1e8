"""From the tools of a response to what the gateway's core knows of tools."""

from __future__ import annotations

from functools import partial

from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import missing, unsupported
from baton.gateway.api.responses.schema import FunctionTool, ResponsesBody
from baton.gateway.generation.tools import NO_PARAMETERS, ToolFields, ToolUse, choose, choose_named, read_tools
from baton.text.tools import Tool

_FIELDS = ToolFields("name", "parameters", "strict")


def response_tools(body: ResponsesBody, exchange: Exchange) -> ToolUse:
    """Return a body's functions and their use; raise ApiError or InvalidFieldError naming the parameter that is bad."""
    tools = read_tools(body.tools, partial(_tool, exchange), _FIELDS)
    use = ToolUse(tools, is_parallel=body.parallel_tool_calls is not False, fields=_FIELDS)
    choice = body.tool_choice
    if isinstance(choice, str) or choice is None:
        return choose(use, choice or "auto")
    if choice.type != "function" or choice.name is None:
        raise unsupported("tool_choice.type", f"only functions can be chosen, got `{choice.type}`")
    return choose_named(use, choice.name, "tool_choice.name")


def _tool(exchange: Exchange, param: str, tool: FunctionTool) -> Tool | None:
    if tool.type != "function":
        exchange.ignore_tool(param, tool.type)
        return None
    if tool.name is None:
        raise missing(f"{param}.name")
    return Tool(tool.name, tool.parameters or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))
