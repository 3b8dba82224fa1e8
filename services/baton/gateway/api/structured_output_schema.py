"""Fields by which requests demand a form of the output: OpenAI's `response_format`, and the names that vLLM has."""

from __future__ import annotations

from typing import Any

import msgspec


class JsonSchemaParam(msgspec.Struct, forbid_unknown_fields=True):
    """A named JSON Schema."""

    name: str
    """1 to 64 letters, digits, `_` or `-`."""
    schema: dict[str, Any] | None = None
    """Draft 2020-12; null: any object. Keywords that cannot be enforced are refused."""
    description: str | None = None
    strict: bool | None = None
    """Accepted; every schema is enforced."""


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The form of the output."""

    type: str
    """text, json_object, json_schema, regex or grammar."""
    json_schema: JsonSchemaParam | None = None
    """For json_schema."""
    regex: str | None = None
    """For regex: a regular expression of Rust's regex crate that matches the whole output."""
    grammar: str | None = None
    """For grammar: in llguidance's dialect of Lark, with rule `start`."""


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
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


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """`text.format` of /v1/responses."""

    type: str
    """text, json_object or json_schema."""
    name: str | None = None
    """For json_schema."""
    schema: dict[str, Any] | None = None
    """For json_schema."""
    description: str | None = None
    strict: bool | None = None
    """Accepted; every schema is enforced."""


class TextParam(msgspec.Struct, forbid_unknown_fields=True):
    """`text` of /v1/responses."""

    format: TextFormat | None = None
    """Form of the output; null: any text."""
    verbosity: Any = None
