"""Grammars that let a model reason before structured output: only the answer after the reasoning is structured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from baton.text.reasoning_parser import ReasoningMarkers

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
