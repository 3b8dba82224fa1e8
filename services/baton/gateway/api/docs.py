"""GET /docs: the OpenAPI document as a page for people; it needs no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import msgspec

DOCS_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code { font-size: 14px }
table { border-collapse: collapse; margin: .5rem 0 1rem } td { padding: .1rem 1rem .1rem 0; vertical-align: top }
"""


def docs_page(document: bytes) -> bytes:
    """Return the page of an OpenAPI document."""
    api: dict[str, Any] = msgspec.json.decode(document)
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in sorted(api["components"]["schemas"].items()))
    title = f"{api['info']['title']} {api['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{escape(title)}</h1>'
        '<p>The machine-readable form is <a href="/openapi.json">/openapi.json</a>.</p>'
        f"<table>{operations}</table><h2>Objects</h2>{schemas}</html>"
    ).encode()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    takes = f"; takes {_kind(body['schema'])}" if body else ""
    return f"<tr><td><code>{method.upper()} {escape(path)}</code><td>{escape(operation['summary'])}{takes}"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code><td>{_kind(part)}" for field, part in schema.get("properties", {}).items()
    )
    return f'<h3 id="{escape(name)}">{escape(name)}</h3>{escape(schema.get("description", ""))}<table>{rows}</table>'


def _kind(schema: Mapping[str, Any]) -> str:
    """Return what a value may be, with links to objects."""
    return " or ".join(dict.fromkeys(_kinds(schema)))


def _kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    if reference := schema.get("$ref", "").rpartition("/")[2]:
        yield f'<a href="#{escape(reference)}">{escape(reference)}</a>'
    elif "anyOf" in schema:
        for part in schema["anyOf"]:
            yield from _kinds(part)
    elif "enum" in schema:
        yield from (escape(msgspec.json.encode(value).decode()) for value in schema["enum"])
    elif schema.get("type") == "array":
        yield f"array of ({_kind(schema.get('items', {})) or 'anything'})"
    else:
        kind = schema.get("type", "anything")
        yield escape(kind if isinstance(kind, str) else " or ".join(kind))
