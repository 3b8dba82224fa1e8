"""From the tools of Anthropic's messages to what the gateway's core knows of tools."""

from __future__ import annotations

from baton.errors import InvalidFieldError
from baton.gateway.api.anthropic.schema import CACHE_CONTROL, ConversationBody, ToolDefinition
from baton.gateway.api.errors import unsupported
from baton.gateway.generation.tools import NO_PARAMETERS, ToolFields, ToolUse, choose, choose_named, read_tools
from baton.text.tools import Tool

_FIELDS = ToolFields("name", "input_schema", "strict")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def message_tools(body: ConversationBody) -> ToolUse:
    """Return the tools of a body and how they may be called.

    Raises:
        ApiError: 400, naming the parameter that is not served.
        InvalidFieldError: Naming the one that is wrong.
    """
    tools = read_tools(body.tools, _tool, _FIELDS)
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


def _tool(param: str, tool: ToolDefinition) -> Tool:
    if tool.type not in (None, "custom"):
        raise unsupported(f"{param}.type", f"only custom tools are served, got `{tool.type}`")
    if tool.cache_control is not None and tool.cache_control not in CACHE_CONTROL:
        raise unsupported(f"{param}.cache_control")
    for field in ("allowed_callers", "defer_loading", "input_examples"):
        if getattr(tool, field) not in (None, False, [], ["direct"]):
            raise unsupported(f"{param}.{field}")
    return Tool(tool.name, tool.input_schema or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))
