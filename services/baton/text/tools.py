"""Tools that a model may call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Tool:
    """A function by its name and the JSON schema of its arguments."""

    name: str
    """Letters, digits, "_" and "-"; unique within a request."""
    parameters: Mapping[str, object]
    """JSON schema of an object."""
    description: str | None = None
    is_strict: bool = False
    """Whether arguments must follow the schema, closed, also where the model is free not to call."""
    place: int = field(default=0, compare=False)
    """Among the tools that a request declares, those that are left out included; for errors."""

    @property
    def definition(self) -> dict[str, object]:
        """Return the tool as chat templates know it: OpenAI's object."""
        function: dict[str, object] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LEFT_ALONE = frozenset({"const", "enum", "default", "examples", "allOf", "not", "if", "then", "else"})
_OPENED_BY = frozenset({"additionalProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"})
"""With one of these an object says itself what else it may have, or is put together of several schemas."""


def closed(schema: Mapping[str, object]) -> dict[str, Any]:
    """Return a schema whose objects have no properties but those it names, which is what `strict` asks for."""
    result: dict[str, Any] = json.loads(json.dumps(schema))
    for each in schemas_within(result, _LEFT_ALONE):
        if "properties" in each and not _OPENED_BY & each.keys():
            each["additionalProperties"] = False
    return result


def schemas_within(schema: Any, left_alone: Set[str]) -> Iterator[dict[str, Any]]:
    """Yield a schema and those within it, but for what is under keywords that are `left_alone`."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            yield value
            for keyword, inner in value.items():
                if keyword in _MAPS_OF_SCHEMAS and isinstance(inner, dict):
                    pending += inner.values()
                elif keyword not in left_alone:
                    pending.append(inner)
