"""Rows of the fields that demand a form of the output."""

from __future__ import annotations

from typing import Any

from gateway.api.parameters.table import Effect, Row, Seen, ignored, refused

_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"answer": {"type": "integer"}}}
_NAMED = {"name": "x", "schema": _SCHEMA}
_FORMATS: dict[str, dict[str, Any]] = {
    "json_schema": {"type": "json_schema", "json_schema": _NAMED},
    "regex": {"type": "regex", "regex": "[a-c]{3}"},
    "grammar": {"type": "grammar", "grammar": 'start: "lark"'},
}


def constrained(*parts: str) -> Effect:
    """Expect a constraint at the node that has certain parts; a model that reasons has it after its reasoning."""

    def check(seen: Seen) -> bool:
        form = seen.sampling.structured_output
        text = getattr(form, form.WhichOneof("constraint") or "lark")
        return seen.reply.status == 200 and all(part in text for part in parts)

    return check


def unconstrained(seen: Seen) -> bool:
    """Expect an answer of any form."""
    return seen.reply.status == 200 and not seen.sampling.HasField("structured_output")


def _schema_row(field: str, effect: Effect, **changes: Any) -> Row:
    body = {"type": "json_schema", "json_schema": _NAMED | changes}
    return Row(f"response_format.json_schema{field}", {"response_format": body}, effect)


def _outputs_row(field: str, effect: Effect, **fields: Any) -> Row:
    return Row(f"structured_outputs.{field}", {"structured_outputs": {"json": _SCHEMA} | fields}, effect)


FORM_ROWS = [
    Row("response_format", {"response_format": {"type": "text"}}, unconstrained),
    Row("response_format", {"response_format": {"type": "json_object"}}, constrained("object")),
    Row("response_format.type", {"response_format": {"type": "xml"}}, refused("response_format.type")),
    Row("response_format.regex", {"response_format": _FORMATS["regex"]}, constrained("[a-c]{3}")),
    Row("response_format.grammar", {"response_format": _FORMATS["grammar"]}, constrained('"lark"')),
    _schema_row("", constrained("answer", "integer")),
    _schema_row(".name", refused("response_format.json_schema.name"), name="a b"),
    _schema_row(".schema", constrained("other"), schema={"type": "object", "properties": {"other": {}}}),
    _schema_row(".description", constrained("answer"), description="What it is."),
    _schema_row(".strict", constrained("answer", '"additionalProperties"'), strict=True),
    Row("structured_outputs", {"structured_outputs": {}}, unconstrained),
    Row("structured_outputs.json", {"structured_outputs": {"json": _SCHEMA}}, constrained("answer")),
    _outputs_row(
        "whitespace_pattern", constrained("answer", "whitespace_flexible", "[ ]{1,2}"), whitespace_pattern="[ ]{1,2}"
    ),
    _outputs_row("disable_any_whitespace", constrained("answer"), disable_any_whitespace=True),
    _outputs_row(
        "disable_additional_properties",
        constrained('"additionalProperties"'),
        disable_additional_properties=True,
    ),
    Row("structured_outputs.json_object", {"structured_outputs": {"json_object": True}}, constrained("object")),
    Row("structured_outputs.regex", {"structured_outputs": {"regex": "[a-c]{3}"}}, constrained("[a-c]{3}")),
    Row("structured_outputs.choice", {"structured_outputs": {"choice": ["yes", "no"]}}, constrained('"yes" | "no"')),
    Row("structured_outputs.grammar", {"structured_outputs": {"grammar": 'start: "lark"'}}, constrained('"lark"')),
    Row("guided_json", {"guided_json": _SCHEMA}, constrained("answer")),
    Row("guided_regex", {"guided_regex": "[a-c]{3}"}, constrained("[a-c]{3}")),
    Row("guided_choice", {"guided_choice": ["yes", "no"]}, constrained('"yes" | "no"')),
    Row("guided_grammar", {"guided_grammar": 'start: "lark"'}, constrained('"lark"')),
    Row("guided_grammar", {"guided_grammar": 'start: "x"', "guided_regex": "x"}, refused("guided_grammar")),
]
"""Of /v1/chat/completions and /v1/completions."""


def _text_row(field: str, effect: Effect, **changes: Any) -> Row:
    form = {"type": "json_schema", "name": "x", "schema": _SCHEMA} | changes
    return Row(f"text.format{field}", {"text": {"format": form}}, effect)


TEXT_ROWS = [
    Row("text", {"text": {"format": {"type": "text"}}}, unconstrained),
    Row("text.verbosity", {"text": {"verbosity": "low"}}, ignored("text.verbosity")),
    _text_row("", constrained("answer", "integer")),
    _text_row(".type", refused("text.format.type"), type="xml"),
    _text_row(".name", refused("text.format.name"), name="a b"),
    _text_row(".schema", constrained("other"), schema={"type": "object", "properties": {"other": {}}}),
    _text_row(".description", constrained("answer"), description="What it is."),
    _text_row(".strict", constrained("answer", '"additionalProperties"'), strict=True),
]
"""Of /v1/responses."""
