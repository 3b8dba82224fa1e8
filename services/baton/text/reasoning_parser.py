"""Splits reasoning from what follows it: `<think> ... </think>` and the like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

from baton.text.markers import length_before_partial_marker


class ReasoningMarkers(NamedTuple):
    """What a model writes before and after its reasoning."""

    begin: str
    end: str


class ReasoningSplit(NamedTuple):
    """What `ReasoningParser.push` learnt from more text."""

    reasoning: str
    rest: str
    """Text after the reasoning, or of an answer that has none."""


class ReasoningParser:
    """Takes the reasoning from the beginning of an answer; white space around it belongs to its markers.

    A later marker is text: models reason once, before they answer.
    """

    def __init__(self, markers: ReasoningMarkers, *, is_begun: bool) -> None:
        """Begin; `is_begun` says that the prompt ends with the opening marker."""
        self._markers = markers
        self._buffer = ""
        self._stage = "reasoning" if is_begun else "begin"
        self._is_shown = False

    def push(self, text: str) -> ReasoningSplit:
        """Take the next text."""
        if self._stage == "done":
            return ReasoningSplit("", text)
        self._buffer += text
        if self._stage == "begin":
            self._read_begin()
        reasoning = self._read_reasoning() if self._stage == "reasoning" else ""
        if self._stage == "after":
            self._buffer = self._buffer.lstrip()
            self._stage = "done" if self._buffer else "after"
        if self._stage == "done":
            rest, self._buffer = self._buffer, ""
            return ReasoningSplit(reasoning, rest)
        return ReasoningSplit(reasoning, "")

    def finish(self) -> ReasoningSplit:
        """Return what was held back; no more text comes."""
        rest, self._buffer = self._buffer, ""
        if self._stage != "reasoning":
            return ReasoningSplit("", rest)
        return ReasoningSplit(rest.rstrip() if self._is_shown else rest.strip(), "")

    def _read_begin(self) -> None:
        stripped = self._buffer.lstrip()
        if stripped.startswith(self._markers.begin):
            self._buffer = stripped[len(self._markers.begin) :]
            self._stage = "reasoning"
        elif not self._markers.begin.startswith(stripped):
            self._stage = "done"

    def _read_reasoning(self) -> str:
        if not self._is_shown:
            self._buffer = self._buffer.lstrip()
        at = self._buffer.find(self._markers.end)
        if at >= 0:
            reasoning = self._buffer[:at].rstrip()
            self._buffer = self._buffer[at + len(self._markers.end) :]
            self._stage = "after"
            return reasoning
        length = len(self._buffer[: length_before_partial_marker(self._buffer, (self._markers.end,))].rstrip())
        reasoning, self._buffer = self._buffer[:length], self._buffer[length:]
        self._is_shown = self._is_shown or bool(reasoning)
        return reasoning


StructureKind = Literal["json_schema", "regex", "lark"]
"""The language in which a structure is asked for, as generation.proto names it."""

_SCHEMA_OPTIONS = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
"""As nodes compile schemas that stand alone; those of the schema itself go first."""


def grammar_after_reasoning(
    kind: StructureKind,
    text: str,
    markers: ReasoningMarkers,
    special_tokens: Mapping[str, int],
    *,
    is_in_reasoning: bool,
) -> str:
    """Return the grammar, in llguidance's dialect of Lark, of reasoning and then the structured answer.

    `is_in_reasoning`: the prompt ends with the opening marker; otherwise there may be no reasoning.
    """
    begin, end = (
        f"<[{special_tokens[marker]}]>" if marker in special_tokens else json.dumps(marker)
        for marker in (markers.begin, markers.end)
    )
    lazy = "" if markers.end in special_tokens else "[lazy]"
    before = "thought SPACE" if is_in_reasoning else f"({begin} thought SPACE)?"
    rules = [f"start: {before} answer", f"thought{lazy}: THOUGHT {end}", r"THOUGHT: /(.|\n)*/", r"SPACE: /[ \n]{0,2}/"]
    return "\n".join([*rules, f"answer: {as_grammar_rule(kind, text)}"])


def as_grammar_rule(kind: StructureKind, text: str) -> str:
    """Return a structure as the right side of a grammar's rule."""
    if kind == "regex":
        return "/" + text.replace("\\/", "/").replace("/", "\\/").replace("\n", "\\n") + "/"
    if kind == "lark":
        return f"%lark {{\n{text}\n}}"
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):  # the node says what is wrong with it
        return f"%json {text}"
    own = schema.get("x-guidance")
    options = _SCHEMA_OPTIONS | (own if isinstance(own, dict) else {})
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
