"""Schemas of tools."""

from __future__ import annotations

from typing import Any

from baton.text.tools import closed


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_a_closed_schema_has_no_properties_but_those_it_names() -> None:
    """At every depth, in lists, choices and definitions; the schema that was given stays as it is."""
    inner, properties = _object(a={"type": "string"}), _object(properties=_object(b={}))
    schema = {
        **_object(x=inner, y={"type": "array", "items": inner}, z={"anyOf": [inner, {"type": "null"}]}),
        "$defs": {"d": inner},
    }
    shut = {**inner, "additionalProperties": False}

    assert closed(schema) == {
        **_object(x=shut, y={"type": "array", "items": shut}, z={"anyOf": [shut, {"type": "null"}]}),
        "$defs": {"d": shut},
        "additionalProperties": False,
    }
    assert "additionalProperties" not in str(schema)
    assert closed(properties)["properties"].keys() == {"properties"}
    assert closed({"const": inner}) == {"const": inner}


def test_what_a_schema_says_of_further_properties_stays() -> None:
    """Also where several schemas make up one object: each alone would exclude what the others name."""
    for schema in (
        {**_object(), "additionalProperties": {"type": "string"}},
        {"type": "object", "additionalProperties": True},
        {**_object(), "allOf": [_object(a={})]},
        {"type": "object"},
    ):
        assert closed(schema) == schema
