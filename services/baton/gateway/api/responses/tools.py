"""From the tools of a response to what the gateway's core knows of tools."""

from __future__ import annotations

from baton.gateway.api.errors import refused
from baton.gateway.api.openai.messages import NO_PARAMETERS, choose, choose_named
from baton.gateway.api.responses.schema import FunctionTool, ResponsesBody
from baton.gateway.generation.tools import ToolFields, ToolUse, read_tools
from baton.text.tools import Tool

_FIELDS = ToolFields("name", "parameters", "strict")


def response_tools(body: ResponsesBody) -> ToolUse:
    """Return the tools of a body and how they may be called.

    Raises:
        ApiError: 400, naming the parameter that is not served.
        InvalidFieldError: Naming the one that is wrong.
    """
    tools = read_tools(body.tools, _tool, _FIELDS)
    use = ToolUse(tools, is_parallel=body.parallel_tool_calls is not False, fields=_FIELDS)
    choice = body.tool_choice
    if isinstance(choice, str) or choice is None:
        return choose(use, choice or "auto")
    if choice.type != "function" or choice.name is None:
        text = f"Unsupported parameter: `tool_choice.type`: only functions can be chosen, got `{choice.type}`"
        raise refused("tool_choice.type", text, code="unsupported_parameter")
    return choose_named(use, choice.name, "tool_choice.name")


def _tool(param: str, tool: FunctionTool) -> Tool:
    if tool.type != "function":
        text = f"Unsupported parameter: `{param}.type`: only functions are served, got `{tool.type}`"
        raise refused(f"{param}.type", text, code="unsupported_parameter")
    if tool.name is None:
        name = f"{param}.name"
        raise refused(name, f"Missing required parameter: `{name}`", code="missing_required_parameter")
    return Tool(tool.name, tool.parameters or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))
