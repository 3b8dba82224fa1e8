"""Grammars that make a model call tools, in its own notation and with arguments that follow their schemas.

Written in llguidance's dialect of Lark; a special token is written by its id, since its name as text is other tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from baton.text.reasoning_parser import ReasoningMarkers
from baton.text.tool_calls.notation import CallNotation
from baton.text.tools import Tool, closed

MAX_CALLS = 32
"""Calls of one answer that a grammar allows."""

_TEXT = "TEXT: /(.|\\n)*/"
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as templates write it; free white space would let a model write nothing else for ever."""
_ANY_OBJECT: Mapping[str, object] = {"type": "object"}
_DEFINITIONS = ("$defs", "definitions")
_BEYOND_TEXT = (
    "pattern",
    "format",
    "minLength",
    "maxLength",
    "const",
    "enum",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "not",
)
"""What a schema can ask of a string that is written without quotes, up to its tag, and no grammar here holds."""


class CallGrammar:
    """Writes the grammars of one model."""

    def __init__(
        self, notation: CallNotation, special_tokens: Mapping[str, int], reasoning: ReasoningMarkers | None
    ) -> None:
        self._notation = notation
        self._special_tokens = special_tokens
        self._reasoning = reasoning

    @property
    def can_follow_text(self) -> bool:
        """Return whether calls can be told from the text before them."""
        return bool(self._notation.trigger)

    def forced(self, tools: Sequence[Tool], *, is_parallel: bool, is_in_reasoning: bool) -> str:
        """Return the grammar of an answer that is calls: at least one, of any of the tools.

        There is 1 tool or more; `is_in_reasoning`: the prompt ends with the marker that opens the reasoning.
        """
        more = "" if not is_parallel or self._notation.is_single else self._more_calls()
        start = f"start: {self._reasoning_part(is_in_reasoning)}{self._literal(self._notation.opening)} call{more} "
        return "\n".join([start + self._literal(self._notation.closing), *self._reasoning_rules(), *self._calls(tools)])

    def free(self, tools: Sequence[Tool]) -> str:
        """Return the grammar of text with any number of calls, whose arguments follow the schemas of strict tools."""
        trigger = self._notation.trigger
        head = f"head{'' if trigger in self._special_tokens else '[lazy]'}: TEXT {self._literal(trigger)}"
        opening = self._notation.opening.removeprefix(trigger)
        calls = self._calls(tools, is_headless=not self._notation.opening, is_loose=True)
        more = self._more_calls() if self._notation.opening else ""
        body = f"body: head {self._literal(opening)} call{more} {self._literal(self._notation.closing)}"
        return "\n".join(["start: (body)* tail", "tail: TEXT", _TEXT, head, body, *calls])

    def structure_or_calls(
        self, structure: str, tools: Sequence[Tool], *, is_parallel: bool, is_in_reasoning: bool
    ) -> str:
        """Return the grammar of an answer that is either structured or calls; see `can_replace`.

        `structure` is the right side of its rule; arguments follow the schemas of strict tools, of which there is 1 or
        more.
        """
        more = self._more_calls() if is_parallel else ""
        opening, closing = map(self._literal, (self._notation.opening, self._notation.closing))
        rules = [f"start: {self._reasoning_part(is_in_reasoning)}(answer | calls)", f"answer: {structure}"]
        calls = [f"calls: {opening} call{more} {closing}", *self._calls(tools, is_loose=True)]
        return "\n".join([*rules, *self._reasoning_rules(), *calls])

    def can_replace(self, *, is_json: bool) -> bool:
        """Return whether calls can be told from a structured answer by their first token."""
        trigger = self._notation.trigger
        return trigger in self._special_tokens or (is_json and trigger.startswith("<"))

    def unheld_keyword(self, tool: Tool) -> str | None:
        """Return where the schema of a tool asks for what calls in this notation are not held to; None: nowhere."""
        properties = tool.parameters.get("properties")
        if self._notation.arguments != "tags" or not isinstance(properties, Mapping):
            return None
        for name in properties:
            schema = _property_schema(tool, name)
            keyword = next((keyword for keyword in _BEYOND_TEXT if keyword in schema), None)
            if keyword is not None and _is_text(schema):
                return f"properties.{name}.{keyword}"
        return None

    def _more_calls(self) -> str:
        return f" ({self._literal(self._notation.separator)} call){{0,{MAX_CALLS - 1}}}"

    def _calls(self, tools: Sequence[Tool], *, is_headless: bool = False, is_loose: bool = False) -> Iterable[str]:
        """Yield the rules of a call; if it is loose, tools that are not strict take any arguments."""
        if self._notation.arguments == "tags":
            begin, end = self._notation.tags
            before, after = map(self._literal, begin.split("KEY"))
            is_token = any(token in end for token in self._special_tokens)
            yield "TAG_TEXT: /(.|\\n)*/"
            yield f"tag_text{'' if is_token else '[lazy]'}: TAG_TEXT {self._literal(end)}"
            yield f"any_tag: {before} /[^<>\\n]{{1,128}}/ {after} tag_text"
        yield "call: " + " | ".join(f"call_{index}" for index in range(len(tools)))
        before = self._notation.before_call.removeprefix(self._notation.trigger if is_headless else "")
        for index, tool in enumerate(tools):
            begin, end = (
                self._literal(part.replace("NAME", tool.name)) for part in (before, self._notation.after_call)
            )
            if tool.is_strict:
                tool = replace(tool, parameters=closed(tool.parameters))
            any_arguments = "any_tag*" if self._notation.arguments == "tags" else _json_rule(_ANY_OBJECT)
            arguments = self._arguments(tool) if tool.is_strict or not is_loose else any_arguments
            yield f"call_{index}: {begin} {arguments} {end}"

    def _arguments(self, tool: Tool) -> str:
        if self._notation.arguments == "json":
            return _json_rule({**tool.parameters, "type": "object"})
        properties = tool.parameters.get("properties")
        required = tool.parameters.get("required")
        names = list(properties) if isinstance(properties, Mapping) else []
        is_required = [isinstance(required, list) and name in required for name in names]
        schemas = [_property_schema(tool, name) for name in names]
        if self._notation.arguments == "keywords":
            return _keywords(names, is_required, schemas)
        begin, end = self._notation.tags
        begins = [self._literal(begin.replace("KEY", name)) for name in names]
        return _tags(begins, is_required, schemas, self._literal(end))

    def _reasoning_part(self, is_in_reasoning: bool) -> str:
        if self._reasoning is None:
            return ""
        return "reasoning_end " if is_in_reasoning else "reasoning? "

    def _reasoning_rules(self) -> Iterable[str]:
        if self._reasoning is None:
            return
        end = self._literal(self._reasoning.end)
        yield _TEXT
        yield f"reasoning: {self._literal(self._reasoning.begin)} reasoning_end"
        is_token = self._reasoning.end in self._special_tokens
        yield "SPACE: /[ \\n]{0,2}/"
        yield "reasoning_end: thought SPACE"
        yield f"thought: TEXT {end}" if is_token else f"thought[lazy]: TEXT {end}"

    def _literal(self, text: str) -> str:
        """Return a text as a sequence of strings and special tokens."""
        if not text:
            return ""
        names = sorted(map(re.escape, self._special_tokens), key=len, reverse=True)
        parts = re.split(f"({'|'.join(names)})", text) if names else [text]
        return " ".join(
            f"<[{self._special_tokens[part]}]>" if part in self._special_tokens else _quoted(part)
            for part in parts
            if part
        )


def _json_rule(schema: Mapping[str, object]) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _COMPACT}, ensure_ascii=False)


def _property_schema(tool: Tool, name: str) -> Mapping[str, object]:
    """Return the schema of one parameter, with the definitions that it may refer to."""
    properties = tool.parameters["properties"]
    schema = properties[name] if isinstance(properties, Mapping) else {}
    if not isinstance(schema, Mapping):
        return {}
    return {**{key: tool.parameters[key] for key in _DEFINITIONS if key in tool.parameters}, **schema}


def _keywords(names: Sequence[str], is_required: Sequence[bool], schemas: Sequence[Mapping[str, object]]) -> str:
    """Return `a=1, b="x"`: required ones first, others may be left out from the end."""
    order = sorted(range(len(names)), key=lambda index: not is_required[index])
    rule = ""
    for position, index in reversed(list(enumerate(order))):
        comma = '", " ' if position else ""
        rule = f"{comma}{_quoted(names[index] + '=')} {_json_rule(schemas[index])} {rule}"
        rule = rule if is_required[index] else f"({rule})?"
    return rule


def _tags(begins: Sequence[str], is_required: Sequence[bool], schemas: Sequence[Mapping[str, object]], end: str) -> str:
    """Return tagged parameters in the order of the schema, each with the rule of its own beginning."""
    parts = []
    for begin, required, schema in zip(begins, is_required, schemas, strict=True):
        part = f"{begin} {_tag_value(schema, end)}"
        parts.append(part if required else f"({part})?")
    return " ".join(parts)


def _tag_value(schema: Mapping[str, object], end: str) -> str:
    """Return a value with its end: a string is anything up to it, other values are JSON."""
    choices = _text_choices(schema)
    if choices:
        return "(" + " | ".join(map(_quoted, choices)) + f") {end}"
    return "tag_text" if _is_text(schema) else f"{_json_rule(schema)} {end}"


def _is_text(schema: Mapping[str, object]) -> bool:
    """Return whether a parameter's value is any text up to its tag."""
    kind = schema.get("type", "string")
    return not _text_choices(schema) and (kind == "string" or (isinstance(kind, list) and "string" in kind))


def _text_choices(schema: Mapping[str, object]) -> Sequence[str]:
    """Return the texts of which a value is one; none: others are possible."""
    choices = schema.get("enum")
    is_of_texts = isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
    return choices if isinstance(choices, list) and is_of_texts else ()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
