"""What a constraint may cost. A bad one must be refused: it may neither stop the engine nor end the process.

llguidance bounds its own work by counters, and what it does step by step by its stack's depth; what recurses through
references is bounded here, because a stack that overflows ends the process. Measured on an 8 MiB stack with llguidance
1.9: 2000 rules or 500 references in a chain are followed, 4000 rules or 2000 references overflow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from baton.engine.request import StructuredOutput
from baton.errors import InvalidFieldError
from baton.text.tools import schemas_within

MAX_REGEX_BYTES = 8 * 1024
"""Of a regular expression, also of one in a schema: some take memory by the square of their length."""
MAX_PROPERTIES = 1000
"""Of one object; each that is optional is a way to go on after any before it."""
MAX_REFERENCES = 256
MAX_RULES = 1000
STACK_BYTES = 64 << 20
"""Stack of the threads that compile; reserved, not used."""

_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^\"/{}\n]*?:", re.MULTILINE)
_EMBEDDED = re.compile(r"%json\s*(?=\{)")
_HIDDEN_LETTER = re.compile(r"\\u00[0-7]")
_IGNORED_KEYWORDS = frozenset({"additionalItems", "disallow", "divisibleBy", "extends", "nullable"})
"""Keywords of older drafts and of OpenAPI, which llguidance takes for annotations. It names others itself."""
_VALUES = frozenset({"const", "enum", "default", "examples", "example"})


def check_limits(structured_output: StructuredOutput) -> None:
    """Check what the compiler cannot check itself; raise InvalidFieldError naming the constraint and the limit."""
    structured_output.check()
    kind, text = structured_output.kind, structured_output.text
    if kind == "json_schema":
        _check_schema(kind, _schema(text))
    elif kind == "regex":
        _check_count(kind, len(text.encode()), MAX_REGEX_BYTES, "bytes")
    else:
        _check_count(kind, len(_RULE.findall(text)), MAX_RULES, "rules")
        num_references = text.count('ref"') + len(_HIDDEN_LETTER.findall(text))
        _check_count(kind, num_references, MAX_REFERENCES, "references in embedded schemas")
        for schema in _embedded_schemas(text):
            _check_schema(kind, schema)


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidFieldError("structured_output.json_schema", f"not a JSON text: {error}") from error
    if not isinstance(schema, dict):
        raise InvalidFieldError("structured_output.json_schema", "expected an object")
    return schema


def _embedded_schemas(text: str) -> Iterator[dict[str, Any]]:
    """Yield the schemas in a grammar. One that is no JSON text is the compiler's to refuse."""
    decoder, position = json.JSONDecoder(), 0
    while match := _EMBEDDED.search(text, position):
        position = match.end()
        try:
            schema, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            continue
        yield schema


def _check_schema(kind: str, schema: dict[str, Any]) -> None:
    num_references = 0
    for keyword, value in chain.from_iterable(each.items() for each in schemas_within(schema, _VALUES)):
        num_references += keyword == "$ref"
        if keyword in _IGNORED_KEYWORDS:
            raise InvalidFieldError(f"structured_output.{kind}", f"keyword {keyword!r} is not supported")
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            _check_count(kind, len(value), MAX_PROPERTIES, "properties of one object")
        for pattern in _patterns(keyword, value):
            _check_count(kind, len(pattern.encode()), MAX_REGEX_BYTES, "bytes of one pattern")
    _check_count(kind, num_references, MAX_REFERENCES, "references")


def _patterns(keyword: str, value: Any) -> list[str]:
    if keyword in ("pattern", "whitespace_pattern") and isinstance(value, str):
        return [value]
    return list(value) if keyword == "patternProperties" and isinstance(value, dict) else []


def _check_count(kind: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise InvalidFieldError(f"structured_output.{kind}", f"too complex: {count} {what}, at most {limit} are taken")
