"""From the tools of Anthropic's messages to what the gateway's core knows of tools."""

from __future__ import annotations

from baton.errors import InvalidFieldError
from baton.gateway.api.anthropic.schema import CACHE_CONTROL, ConversationBody, ToolDefinition
from baton.gateway.api.errors import refused
from baton.gateway.api.openai.messages import NO_PARAMETERS, choose, choose_named
from baton.gateway.generation.tools import ToolFields, ToolUse, read_tools
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
        text = f"Unsupported parameter: `{param}.type`: only custom tools are served, got `{tool.type}`"
        raise refused(f"{param}.type", text, code="unsupported_parameter")
    if tool.cache_control is not None and tool.cache_control not in CACHE_CONTROL:
        name = f"{param}.cache_control"
        raise refused(name, f"Unsupported parameter: `{name}` is not served here", code="unsupported_parameter")
    for field in ("allowed_callers", "defer_loading", "input_examples"):
        if getattr(tool, field) not in (None, False, [], ["direct"]):
            name = f"{param}.{field}"
            raise refused(name, f"Unsupported parameter: `{name}` is not served here", code="unsupported_parameter")
    return Tool(tool.name, tool.input_schema or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))
