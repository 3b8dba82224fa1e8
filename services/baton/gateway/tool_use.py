"""What a request says of tools, whichever API it came by."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from baton.errors import InvalidFieldError
from baton.text.tools import Tool

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 << 10
"""Of the schemas of all tools together."""
MAX_SCHEMA_DEPTH = 32
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

DeclaredT = TypeVar("DeclaredT")
"""A tool in the words of an API."""

ToolMode = Literal["none", "auto", "required"]
"""Whether the model must not, may or must call."""


class ToolFields(NamedTuple):
    """What an API calls the fields of a tool."""

    name: str
    parameters: str
    strict: str


CHAT_FIELDS = ToolFields("function.name", "function.parameters", "function.strict")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools and how they may be called."""

    tools: tuple[Tool, ...] = ()
    """What was declared."""
    mode: ToolMode = "auto"
    """Whether to call."""
    name: str = ""
    """The one tool that must be called; empty: any."""
    is_parallel: bool = True
    """Whether an answer may have several calls."""
    fields: ToolFields = CHAT_FIELDS
    """Names for errors."""

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Return the tools that the model is told of: none where it must not call."""
        return self.tools if self.mode != "none" else ()

    @property
    def forced(self) -> tuple[Tool, ...]:
        """Return the tools of which one must be called; empty: the model decides."""
        if self.mode != "required":
            return ()
        return tuple(tool for tool in self.tools if self.name in ("", tool.name))


NO_TOOLS = ToolUse()


def read_tools(
    declared: Sequence[DeclaredT] | None, read: Callable[[str, DeclaredT], Tool], fields: ToolFields
) -> tuple[Tool, ...]:
    """Return the tools of a request; how many there are is checked before anything is made of them.

    Args:
        declared: As the API has them.
        read: Makes a tool of one, given the name of its field.
        fields: Their names in that API, for errors.

    Raises:
        InvalidFieldError: If there are too many, or naming the field of the first that cannot be served.
    """
    declared = declared or ()
    if len(declared) > MAX_TOOLS:
        raise InvalidFieldError("tools", f"expected at most {MAX_TOOLS}, got {len(declared)}")
    tools = tuple(read(f"tools[{index}]", tool) for index, tool in enumerate(declared))
    _check_tools(tools, fields)
    return tools


def _check_tools(tools: Sequence[Tool], fields: ToolFields) -> None:
    """Check names and schemas."""
    names: set[str] = set()
    num_bytes = 0
    for index, tool in enumerate(tools):
        field = f"tools[{index}].{fields.name}"
        if not _NAME.fullmatch(tool.name):
            raise InvalidFieldError(field, "expected 1 to 64 letters, digits, `_` or `-`")
        if tool.name in names:
            raise InvalidFieldError(field, f"`{tool.name}` is declared twice")
        names.add(tool.name)
        num_bytes += _check_schema(f"tools[{index}].{fields.parameters}", tool.parameters)
        if num_bytes > MAX_SCHEMA_BYTES:
            raise InvalidFieldError("tools", f"the schemas are larger than {MAX_SCHEMA_BYTES} bytes together")


def _check_schema(field: str, schema: Mapping[str, object]) -> int:
    """Check what holds for every schema; return its size in bytes."""
    if schema.get("type", "object") != "object":
        raise InvalidFieldError(field, "expected the schema of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise InvalidFieldError(f"{field}.properties", "expected an object")
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise InvalidFieldError(field, f"nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return len(json.dumps(schema, ensure_ascii=False).encode(errors="replace"))


def _depth(value: object) -> int:
    """Return how deep a JSON value is nested, without recursion."""
    depth, level = 0, [value]
    while level and depth <= MAX_SCHEMA_DEPTH:
        depth += 1
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, Mapping) else each if isinstance(each, list) else ())
            if isinstance(child, Mapping | list)
        ]
    return depth
