"""Structured output: from the fields that demand a form of the output to the constraint that a node enforces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from baton.gateway.api.errors import invalid, missing, refused
from baton.gateway.api.tolerance import ClosedBody
from baton.text.tools import closed
from baton.v1.generation_pb2 import StructuredOutput

MAX_CHOICES = 1000
_ANY_OBJECT = '{"type":"object"}'
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class JsonSchemaParam(ClosedBody):
    """A named JSON Schema."""

    name: str
    """1 to 64 letters, digits, `_` or `-`."""
    schema: dict[str, Any] | None = None
    """Draft 2020-12; null: any object. Keywords that cannot be enforced are refused."""
    description: str | None = None
    strict: bool | None = None
    """Whether objects have no properties but those that are named; every schema is enforced."""


class ResponseFormat(ClosedBody):
    """The form of the output."""

    type: str
    """text, json_object, json_schema, regex or grammar."""
    json_schema: JsonSchemaParam | None = None
    """For json_schema."""
    regex: str | None = None
    """For regex: a regular expression of Rust's regex crate that matches the whole output."""
    grammar: str | None = None
    """For grammar: in llguidance's dialect of Lark, with rule `start`."""


class StructuredOutputs(ClosedBody):
    """One form of the output, as vLLM names them."""

    json: dict[str, Any] | str | None = None
    """A JSON Schema, or one as text."""
    json_object: bool | None = None
    """Any object."""
    regex: str | None = None
    choice: list[str] | None = None
    """One of these strings."""
    grammar: str | None = None
    """In llguidance's dialect of Lark."""
    whitespace_pattern: str | None = None
    """With `json`: regular expression of the white space that may stand between its parts; null: none."""
    disable_any_whitespace: bool | None = None
    """Accepted; without a pattern there is none anyway."""
    disable_additional_properties: bool | None = None
    """With `json`: whether objects have no properties but those that are named."""


class StructuredOutputFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of completions, of which at most one may be given."""

    response_format: ResponseFormat | None = None
    """Form of the output; null: any text."""
    structured_outputs: StructuredOutputs | None = None
    """Form of the output, as vLLM has it."""
    guided_json: dict[str, Any] | str | None = None
    """`structured_outputs.json` by an older name, as are the next three."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class TextFormat(ClosedBody):
    """`text.format` of /v1/responses."""

    type: str
    """text, json_object or json_schema."""
    name: str | None = None
    """For json_schema."""
    schema: dict[str, Any] | None = None
    """For json_schema."""
    description: str | None = None
    strict: bool | None = None
    """Whether objects have no properties but those that are named; every schema is enforced."""


class TextParam(msgspec.Struct, forbid_unknown_fields=True):
    """`text` of /v1/responses."""

    format: TextFormat | None = None
    """Form of the output; null: any text."""


class OutputSchema(ClosedBody):
    """`output_config.format` of /v1/messages."""

    type: str
    """json_schema."""
    schema: dict[str, Any] | None = None


class OutputConstraint(NamedTuple):
    """A constraint and where it came from."""

    constraint: StructuredOutput | None = None
    """What a node enforces; None: the output may have any form."""
    field: str = ""


def output_constraint(body: StructuredOutputFields) -> OutputConstraint:
    """Return the form that a completion must have; raise ApiError, 400, if it is wrong, or there are several."""
    forms = [form for form in _forms(body) if form.constraint is not None]
    if len(forms) > 1:
        raise invalid(forms[1].field, f"the form of the output is given by `{forms[0].field}` already")
    return forms[0] if forms else OutputConstraint()


def text_constraint(text: TextParam | None) -> OutputConstraint:
    """Return the form that /v1/responses asks for; raise ApiError, 400, naming the field that is wrong."""
    if text is None or text.format is None:
        return OutputConstraint()
    field, form = "text.format", text.format
    schema = None
    if form.type == "json_schema":
        schema = JsonSchemaParam(form.name or "", form.schema, form.description, form.strict)
    elif form.type not in ("text", "json_object"):
        raise invalid(f"{field}.type", "expected text, json_object or json_schema")
    return OutputConstraint(_of_response_format(ResponseFormat(form.type, schema), field), field)


def message_constraint(form: OutputSchema | None) -> OutputConstraint:
    """Return the form that /v1/messages asks for; raise ApiError, 400, naming the field that is wrong."""
    field = "output_config.format"
    if form is None:
        return OutputConstraint()
    if form.type != "json_schema":
        raise invalid(f"{field}.type", "expected json_schema")
    if form.schema is None:
        raise missing(f"{field}.schema")
    return OutputConstraint(_of_schema(form.schema), field)


def _forms(body: StructuredOutputFields) -> Iterator[OutputConstraint]:
    if body.response_format is not None:
        yield OutputConstraint(_of_response_format(body.response_format, "response_format"), "response_format")
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs, "structured_outputs.")
    older = StructuredOutputs(body.guided_json, None, body.guided_regex, body.guided_choice, body.guided_grammar)
    yield from _of_structured_outputs(older, "guided_")


def _of_response_format(form: ResponseFormat, field: str) -> StructuredOutput | None:
    given = {name for name in ("json_schema", "regex", "grammar") if getattr(form, name) is not None}
    if form.type not in ("text", "json_object", "json_schema", "regex", "grammar"):
        raise invalid(f"{field}.type", "expected text, json_object, json_schema, regex or grammar")
    if extra := sorted(given - {form.type}):
        raise invalid(f"{field}.{extra[0]}", f"expected none where the type is {form.type}")
    if form.type == "text":
        return None
    if form.type == "json_object":
        return StructuredOutput(json_schema=_ANY_OBJECT)
    if form.type not in given:
        raise refused(f"{field}.{form.type}", f"Missing required parameter: `{field}.{form.type}`")
    if form.json_schema is not None:
        if not _NAME.fullmatch(form.json_schema.name):
            name = f"{field}.name" if field == "text.format" else f"{field}.json_schema.name"
            raise invalid(name, "expected 1 to 64 letters, digits, `_` or `-`")
        return _of_schema(form.json_schema.schema, is_closed=bool(form.json_schema.strict))
    if form.regex is not None:
        return StructuredOutput(regex=form.regex)
    return StructuredOutput(lark=form.grammar)


def _of_structured_outputs(outputs: StructuredOutputs, prefix: str) -> Iterator[OutputConstraint]:
    if outputs.json is not None:
        yield OutputConstraint(_of_json(outputs, outputs.json, f"{prefix}json"), f"{prefix}json")
    if outputs.json_object:
        yield OutputConstraint(StructuredOutput(json_schema=_ANY_OBJECT), f"{prefix}json_object")
    if outputs.regex is not None:
        yield OutputConstraint(StructuredOutput(regex=outputs.regex), f"{prefix}regex")
    if outputs.choice is not None:
        yield OutputConstraint(_of_choices(outputs.choice, f"{prefix}choice"), f"{prefix}choice")
    if outputs.grammar is not None:
        yield OutputConstraint(StructuredOutput(lark=outputs.grammar), f"{prefix}grammar")


def _of_json(outputs: StructuredOutputs, schema: dict[str, Any] | str, field: str) -> StructuredOutput:
    if isinstance(schema, str):
        if outputs.whitespace_pattern is None and not outputs.disable_additional_properties:
            return StructuredOutput(json_schema=schema)
        try:
            schema = msgspec.json.decode(schema, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise invalid(field, f"expected a JSON object: {error}") from error
    if outputs.whitespace_pattern is not None:
        schema = {
            **schema,
            "x-guidance": {"whitespace_flexible": True, "whitespace_pattern": outputs.whitespace_pattern},
        }
    return _of_schema(schema, is_closed=bool(outputs.disable_additional_properties))


def _of_schema(schema: dict[str, Any] | None, *, is_closed: bool = False) -> StructuredOutput:
    if schema is None:
        return StructuredOutput(json_schema=_ANY_OBJECT)
    return StructuredOutput(json_schema=msgspec.json.encode(closed(schema) if is_closed else schema).decode())


def _of_choices(choices: list[str], field: str) -> StructuredOutput:
    if not 1 <= len(choices) <= MAX_CHOICES or "" in choices:
        raise invalid(field, f"expected 1 to {MAX_CHOICES} strings, none of them empty")
    # JSON's escapes are those of Lark's strings.
    return StructuredOutput(lark="start: " + " | ".join(msgspec.json.encode(choice).decode() for choice in choices))
