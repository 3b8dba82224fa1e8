"""Lets a model reason before an output that must have a form: the form is that of the answer alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

from baton.text.reasoning_parser import ReasoningMarkers

StructureKind = Literal["json_schema", "regex", "lark"]
"""The language of a form, as generation.proto names it."""

_SCHEMA_OPTIONS = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}
"""As nodes compile schemas that stand alone."""


def grammar_after_reasoning(
    kind: StructureKind, text: str, marks: ReasoningMarkers, special_tokens: Mapping[str, int], *, is_in_reasoning: bool
) -> str:
    """Return the grammar, in llguidance's dialect of Lark, of reasoning and then the form.

    Args:
        kind: Language of the form.
        text: The form.
        marks: How the model marks reasoning.
        special_tokens: Ids of those marks that are special tokens.
        is_in_reasoning: Whether the prompt ends with the opening mark; otherwise there may be no reasoning.
    """
    begin, end = (
        f"<[{special_tokens[mark]}]>" if mark in special_tokens else json.dumps(mark)
        for mark in (marks.begin, marks.end)
    )
    lazy = "" if marks.end in special_tokens else "[lazy]"
    before = "thought SPACE" if is_in_reasoning else f"({begin} thought SPACE)?"
    rules = [f"start: {before} form", f"thought{lazy}: THOUGHT {end}", r"THOUGHT: /(.|\n)*/", r"SPACE: /[ \n]{0,2}/"]
    return "\n".join([*rules, f"form: {as_grammar_rule(kind, text)}"])


def as_grammar_rule(kind: StructureKind, text: str) -> str:
    """Return a form as the right side of a rule of a grammar."""
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
    return "%json " + json.dumps({**schema, "x-guidance": _SCHEMA_OPTIONS}, ensure_ascii=False)
