"""Draws request bodies from the schemas of an OpenAPI document: mostly sound ones, for a mutator to damage."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from system.plan import MODEL_NAME

LENGTH_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""Fields that bound an answer. Nearly every body has one of them small: requests are tested, not long answers."""

_TEXTS = ("", "x", "What is 12 + 30?", "é😀", "\x00", "user", "assistant", "system", "text", "auto", "none", "a" * 300)
_MAX_DEPTH = 8


class BodyDrawer:
    """Draws values of a schema; the same seed gives the same ones."""

    def __init__(self, generator: random.Random, components: Mapping[str, Any]) -> None:
        self._random = generator
        self._schemas: Mapping[str, Any] = components["schemas"]

    def body(self, schema: Mapping[str, Any]) -> Any:
        """Return a body that the schema allows, of the served model and with a short answer where that can be said."""
        body = self._draw(schema, 0)
        fields = self._resolved(schema).get("properties", {})
        if not isinstance(body, dict):
            return body
        if "model" in fields and self._random.random() < 0.95:
            body["model"] = MODEL_NAME
        for name in LENGTH_LIMITS:
            if name in fields and self._random.random() < 0.98:
                body[name] = self._random.choice((1, 2, 3, 16))
        return body

    def _draw(self, schema: Any, depth: int) -> Any:
        schema = self._resolved(schema)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self._draw(self._random.choice(schema[choice]), depth)
        if depth > _MAX_DEPTH:
            return None
        kind = schema.get("type", ["null", "integer", "string", "array", "object"])
        return self._draw_kind(self._random.choice(kind) if isinstance(kind, list) else kind, schema, depth)

    def _draw_kind(self, kind: str, schema: Mapping[str, Any], depth: int) -> Any:
        match kind:
            case "object":
                return self._draw_object(schema, depth)
            case "array":
                low = schema.get("minItems", 0)
                length = self._random.randint(low, min(schema.get("maxItems", low + 3), low + 3))
                return [self._draw(schema.get("items", {}), depth + 1) for _ in range(length)]
            case "string":
                return self._random.choice(_TEXTS)
            case "boolean":
                return self._random.random() < 0.5
            case "null":
                return None
            case _:
                return self._draw_number(kind, schema)

    def _draw_object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        fields: Mapping[str, Any] = schema.get("properties", {})
        required: Sequence[str] = schema.get("required", ())
        share = self._random.choice((0.0, 0.03, 0.1, 0.3))
        drawn = {
            name: self._draw(field, depth + 1)
            for name, field in fields.items()
            if name in required or self._random.random() < share
        }
        others = schema.get("additionalProperties", not fields)
        if others:
            for _ in range(self._random.randint(0, 2)):
                drawn[self._random.choice(("1", "30", "x", "type"))] = self._draw(
                    others if isinstance(others, dict) else {}, depth + 1
                )
        return drawn

    def _draw_number(self, kind: str, schema: Mapping[str, Any]) -> float:
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", -2)), schema.get("maximum", 100)
        if kind == "integer":
            return self._random.choice((low, high, self._random.randint(int(low), max(int(low), int(high)))))
        return self._random.choice((low, high, round(self._random.uniform(low, high), 3)))

    def _resolved(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema if isinstance(schema, dict) else {}
