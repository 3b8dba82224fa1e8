"""Conversations, whichever API they came by: messages as chat templates know them, tools, and what forces calls."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeVar

import msgspec

from baton.errors import InvalidFieldError
from baton.text.output_format import ModelOutputFormat
from baton.text.tokenizer import Message
from baton.text.tool_calls.grammar import CallGrammar
from baton.text.tools import Tool
from baton.v1.generation_pb2 import SamplingParameters

MAX_MESSAGES = 2048
"""Of a conversation."""
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles that are served, as chat templates know them."""
MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 64 << 10
"""Of the schemas of all tools together."""
MAX_SCHEMA_DEPTH = 32
NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}}
"""Schema of a tool that takes none."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STRUCTURE = re.compile(r'\\.|["{}\[\],]', re.DOTALL)
"""What a JSON text is made of, beside its values; and escaped characters of strings."""
_CLOSING = {"{": "}", "[": "]"}

_ALPHABET = string.ascii_letters + string.digits
_NUM_CHARACTERS = 24
_NUM_MISTRAL_CHARACTERS = 9
"""Mistral's chat templates refuse any other length."""

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
    mode: ToolMode = "auto"
    """Whether to call."""
    name: str = ""
    """The one tool that must be called; empty: any."""
    is_parallel: bool = True
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
    declared: Sequence[DeclaredT] | None, read: Callable[[str, DeclaredT], Tool | None], fields: ToolFields
) -> tuple[Tool, ...]:
    """Return the tools of a request; how many there are is checked before anything is made of them.

    A tool of which `read` makes None is left out; `fields` are their names in that API, for errors. Raises
    InvalidFieldError if there are too many, or naming the field of the first that cannot be served.
    """
    declared = declared or ()
    if len(declared) > MAX_TOOLS:
        raise InvalidFieldError("tools", f"expected at most {MAX_TOOLS}, got {len(declared)}")
    read_each = ((index, read(f"tools[{index}]", tool)) for index, tool in enumerate(declared))
    tools = tuple(replace(tool, place=index) for index, tool in read_each if tool is not None)
    _check_tools(tools, fields)
    return tools


def choose(use: ToolUse, choice: str) -> ToolUse:
    """Return a use with OpenAI's word for how to call; raise InvalidFieldError if it is none, or tools are missing."""
    if choice in ("none", "auto"):
        return ToolUse(use.tools, "none" if choice == "none" else "auto", "", use.is_parallel, use.fields)
    if choice != "required":
        raise InvalidFieldError("tool_choice", f"expected none, auto, required or a function, got {choice[:64]!r}")
    if not use.tools:
        raise InvalidFieldError("tool_choice", "`required` needs `tools`")
    return ToolUse(use.tools, "required", "", use.is_parallel, use.fields)


def choose_named(use: ToolUse, name: str, param: str) -> ToolUse:
    """Return a use whose one call is that of a tool; raise InvalidFieldError if there is no such tool."""
    if name not in (tool.name for tool in use.tools):
        raise InvalidFieldError(param, f"`{name[:64]}` is none of `tools`")
    return ToolUse(use.tools, "required", name, is_parallel=False, fields=use.fields)


def call_of_answer(tool_call_id: str, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return a call of an answer that is sent back, as chat templates know it."""
    return {"id": tool_call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def json_object(field: str, text: str) -> dict[str, object]:
    """Return the object of a JSON text; of an empty one, an empty one. Raises InvalidFieldError for anything else."""
    try:
        parsed = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidFieldError(field, f"expected a JSON object: {error}") from error
    if not isinstance(parsed, dict):
        raise InvalidFieldError(field, "expected a JSON object")
    return parsed


def parsed_arguments(field: str, arguments: str) -> dict[str, object]:
    """Return the arguments of a call that is sent back, as chat templates know them.

    Of a call that the token limit has cut off, they are those that are there: an agent sends it back as it came. Raises
    InvalidFieldError if they are no JSON object, nor the beginning of one.
    """
    try:
        return json_object(field, arguments)
    except InvalidFieldError:
        for text in _closed(arguments):
            with suppress(InvalidFieldError):
                return json_object(field, text)
        raise


def _closed(text: str) -> Iterator[str]:
    """Yield the beginning of an object with its string and brackets closed, then without its last value or key."""
    closing, is_string = list[str](), False
    end, closed_since = 0, list[str]()  # where the last value or key begins, and brackets closed after that
    for part in _STRUCTURE.finditer(text):
        if (mark := part[0]) == '"':
            is_string = not is_string
        elif mark in _CLOSING and not is_string:
            closing.append(_CLOSING[mark])
            end, closed_since = part.end(), []
        elif mark == "," and not is_string:
            end, closed_since = part.start(), []
        elif mark in "]}" and closing and not is_string:
            closed_since.append(closing.pop())
    if closing:
        rest = "".join(reversed(closing))
        yield text + '"' * is_string + rest
        yield text[:end] + "".join(closed_since) + rest


def _check_tools(tools: Sequence[Tool], fields: ToolFields) -> None:
    """Check names and schemas."""
    names: set[str] = set()
    num_bytes = 0
    for tool in tools:
        field = f"tools[{tool.place}].{fields.name}"
        if not _NAME.fullmatch(tool.name):
            raise InvalidFieldError(field, "expected 1 to 64 letters, digits, `_` or `-`")
        if tool.name in names:
            raise InvalidFieldError(field, f"`{tool.name}` is declared twice")
        names.add(tool.name)
        num_bytes += _check_schema(f"tools[{tool.place}].{fields.parameters}", tool.parameters)
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


class ReadingPlan(NamedTuple):
    """What generation and parser have to know."""

    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens whose names are part of the text."""
    is_in_reasoning: bool = False
    """Whether the prompt ends with the mark that opens the reasoning."""


def plan_reading(
    use: ToolUse | None, model_format: ModelOutputFormat, prompt: str, sampling: SamplingParameters
) -> ReadingPlan:
    """Return how an answer is read; `sampling` gets its grammar. Raises InvalidFieldError if calls cannot be forced."""
    if use is None:
        return ReadingPlan()
    is_in_reasoning = model_format.output_format.opens_reasoning(prompt)
    plan = ReadingPlan(model_format.kept_token_ids(has_tools=bool(use.offered)), is_in_reasoning)
    if not use.offered:
        _let_reason(model_format, sampling, is_in_reasoning=is_in_reasoning)
        return plan
    if model_format.grammar is None:
        raise InvalidFieldError(
            "tools", "the format in which this model calls tools is not known; see tool_call_parser"
        )
    _check_strict(use, model_format.grammar)
    if sampling.HasField("structured_output"):
        _let_call(use, model_format, sampling, is_in_reasoning=is_in_reasoning)
        return plan
    strict = next((tool.place for tool in use.tools if tool.is_strict), None)
    if use.forced:
        lark = model_format.grammar.forced(use.forced, is_parallel=use.is_parallel, is_in_reasoning=is_in_reasoning)
    elif strict is None:
        return plan
    elif model_format.grammar.can_follow_text:
        lark = model_format.grammar.free(use.tools)
    else:
        problem = "calls of this model cannot be told from text in advance, so that none can be made strict"
        raise InvalidFieldError(f"tools[{strict}].{use.fields.strict}", problem)
    sampling.structured_output.lark = lark
    return plan


def _check_strict(use: ToolUse, grammar: CallGrammar) -> None:
    """Refuse strict schemas to which the calls of this model cannot be held; InvalidFieldError if there is one."""
    for tool in use.tools:
        keyword = grammar.unheld_keyword(tool) if tool.is_strict else None
        if keyword is not None:
            field = f"tools[{tool.place}].{use.fields.parameters}.{keyword}"
            raise InvalidFieldError(field, "this model writes strings unquoted, so that it cannot be made strict here")


def _let_call(
    use: ToolUse, model_format: ModelOutputFormat, sampling: SamplingParameters, *, is_in_reasoning: bool
) -> None:
    """Let a model call in place of an answer of a form; raise InvalidFieldError if it must, or calls cannot be told."""
    form, lark = sampling.structured_output, None
    kind = form.WhichOneof("constraint")
    if kind is not None and not use.forced:
        lark = model_format.structure_or_calls(
            kind, getattr(form, kind), use.tools, is_parallel=use.is_parallel, is_in_reasoning=is_in_reasoning
        )
    if lark is None:
        choices = "tool_choice none" if use.forced else "a model whose calls can be told from it"
        raise InvalidFieldError("tools", f"expected no tools, or {choices}, where the form of the output is given")
    form.lark = lark


def _let_reason(model_format: ModelOutputFormat, sampling: SamplingParameters, *, is_in_reasoning: bool) -> None:
    """Let a model that reasons do so before an answer that must have a form."""
    form = sampling.structured_output
    kind = form.WhichOneof("constraint")
    if kind is not None:
        lark = model_format.grammar_after_reasoning(kind, getattr(form, kind), is_in_reasoning=is_in_reasoning)
        if lark is not None:
            form.lark = lark


def new_tool_call_id(tool_format: str, prefix: str = "call_") -> str:
    """Return a random name of a call, under which its result is sent back, in the form that the templates take."""
    if tool_format == "mistral":
        return _random_name(_NUM_MISTRAL_CHARACTERS)
    return prefix + _random_name(_NUM_CHARACTERS)


def _random_name(num_characters: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_characters))


class ChatTurn(NamedTuple):
    """One message, in no API's words."""

    role: str
    content: str | None
    """Its text; None: a call says it all."""
    name: str | None = None
    """Who speaks, for templates that know it."""
    calls: Sequence[Mapping[str, object]] = ()
    """Calls of an assistant's answer, as `call_of_answer` makes them."""
    tool_call_id: str | None = None
    """Of a tool's result: the call that it answers."""
    reasoning: str = ""
    """Of an assistant's answer."""
    reasoning_field: str = "reasoning"
    """What the API calls it."""


def template_message(param: str, turn: ChatTurn) -> Message:
    """Return a message as chat templates know it; raise InvalidFieldError naming a field that is wrong for its role."""
    role = ROLES.get(turn.role)
    if role is None:
        raise InvalidFieldError(f"{param}.role", f"`{turn.role[:64]}` is none of {', '.join(ROLES)}")
    if turn.content is None and not turn.calls:
        raise InvalidFieldError(f"{param}.content", "expected text")
    _check_fields(param, turn)
    fields: dict[str, object] = {"role": role, "content": turn.content}
    if turn.name is not None:
        fields["name"] = turn.name
    if turn.reasoning:
        fields["reasoning_content"] = turn.reasoning
    if turn.calls:
        fields["tool_calls"] = list(turn.calls)
    if turn.tool_call_id is not None:
        fields["tool_call_id"] = turn.tool_call_id
    return fields


def _check_fields(param: str, turn: ChatTurn) -> None:
    """Check what only some roles have."""
    if turn.role != "assistant":
        for name, value in (("tool_calls", turn.calls), (turn.reasoning_field, turn.reasoning)):
            if value:
                raise InvalidFieldError(f"{param}.{name}", "expected only with role assistant")
    if turn.role == "tool" and turn.tool_call_id is None:
        raise InvalidFieldError(f"{param}.tool_call_id", "expected the id of the call that this answers")
    if turn.role != "tool" and turn.tool_call_id is not None:
        raise InvalidFieldError(f"{param}.tool_call_id", "expected only with role tool")
