"""Random JSON Schemas, seeded: what people write, nested, and every keyword that is enforced."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

_NAMES = ("name", "größe", "id", "naïve key", "日本", "tags", "a", "is_ok", 'with "quotes"', "x-y", "émoji 😀")
_PATTERNS = (
    "^[a-c]{2,5}$",
    "^(red|green|blue)$",
    "^[0-9]{3}-[0-9]{4}$",
    "^[ぁ-ん]{1,4}$",
    "^\\w{1,6}$",
    '^[^"\\\\]{3}$',
)
_FORMATS = ("date", "date-time", "time", "uuid", "ipv4")
_VALUES = (None, True, False, 0, -7, 2.5, "", "text", "äöü ß", "日本語", "😀", 'a"b\\c\n', [], [1, "x"], {"k": [None]})


def random_schema(seed: int) -> Schema:
    """Return the schema of a seed; every sentence of it ends after a few hundred characters at the latest."""
    rng = random.Random(seed)
    schema = _schema(rng, depth=rng.randint(1, 3))
    if rng.random() < 0.2:
        return {"$defs": {"part": schema}, "type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2}
    return schema


def _schema(rng: random.Random, depth: int) -> Schema:
    leaves = [_string, _integer, _number, _enumeration, _constant, _boolean, _any_of_types]
    nodes = [_object, _object, _object, _map, _array, _array, _tuple, _any_of, _all_of]
    return rng.choice(nodes if depth > 0 else leaves)(rng, depth - 1)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_NAMES, rng.randint(0, 4))
    return {
        "type": "object",
        "properties": {name: _schema(rng, rng.randint(0, max(0, depth))) for name in names},
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
    }


def _map(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.5:
        return {"type": "object", "additionalProperties": _schema(rng, depth), "minProperties": 1, "maxProperties": 2}
    pattern = {"^[a-z]{1,3}$": _schema(rng, depth)}
    return {"type": "object", "patternProperties": pattern, "additionalProperties": False, "maxProperties": 3}


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _schema(rng, depth), "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    items = [_schema(rng, depth) for _ in range(rng.randint(1, 3))]
    return {"type": "array", "prefixItems": items, "items": False, "minItems": rng.randint(0, len(items))}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(rng, depth) for _ in range(rng.randint(1, 3))]}


def _all_of(rng: random.Random, depth: int) -> Schema:
    first, second = rng.sample(_NAMES, 2)
    parts = [
        {"properties": {name: _schema(rng, depth)}, "required": [name] if rng.random() < 0.5 else []}
        for name in (first, second)
    ]
    closed = {"type": "object", "properties": {first: True, second: True}, "additionalProperties": False}
    return {"allOf": [*parts, closed]}


def _string(rng: random.Random, _depth: int) -> Schema:
    kind = rng.randrange(3)
    if kind == 0:
        return {"type": "string", "pattern": rng.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": rng.choice(_FORMATS)}
    least = rng.randint(0, 4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 6)}


def _integer(rng: random.Random, _depth: int) -> Schema:
    low = rng.randint(-1000, 1000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 500)}
    if rng.random() < 0.3:
        schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(60, 99)}
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.choice((2, 5, 25))
    return schema


def _number(rng: random.Random, _depth: int) -> Schema:
    low = round(rng.uniform(-50, 50), 2)
    return {"type": "number", "minimum": low, "maximum": round(low + rng.uniform(0.5, 30), 2)}


def _enumeration(rng: random.Random, _depth: int) -> Schema:
    return {"enum": rng.sample(_VALUES, rng.randint(1, 4))}


def _constant(rng: random.Random, _depth: int) -> Schema:
    return {"const": rng.choice(_VALUES)}


def _boolean(_rng: random.Random, _depth: int) -> Schema:
    return {"type": "boolean"}


def _any_of_types(rng: random.Random, _depth: int) -> Schema:
    return {"type": rng.sample(["boolean", "null"], rng.randint(1, 2))}
