"""What a gateway's OpenAPI document promises: its endpoints, what they take, what they answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jsonschema_rs

from system.cluster import Cluster

_JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """A method of a path."""

    method: str
    """In upper case."""
    path: str
    """With `{model}` where a model's name goes."""
    description: Mapping[str, Any]
    """The document's."""
    components: Mapping[str, Any]
    """What the description refers to."""

    @property
    def body_schema(self) -> Mapping[str, Any] | None:
        """Return the schema of the JSON that it takes; None if it takes none."""
        content = self.description.get("requestBody", {}).get("content", {})
        return content[_JSON]["schema"] if _JSON in content else None

    def complaint(self, status: int, media_type: str, data: bytes) -> str:
        """Return what an answer breaks of the promise; empty if nothing."""
        promised = self._validators.get(str(status), self._validators["default"])
        if media_type not in promised:
            return f"{status} with {media_type}, promised were {sorted(promised)}"
        if media_type != _JSON:
            return ""
        try:
            errors = list(promised[media_type].iter_errors(json.loads(data)))
        except ValueError as error:
            return f"no JSON: {error}"
        return str(errors[0]) if errors else ""

    @cached_property
    def _validators(self) -> dict[str, dict[str, Any]]:
        return {
            status: {media_type: self._validator(media.get("schema", {})) for media_type, media in content.items()}
            for status, response in self.description["responses"].items()
            if (content := response.get("content")) is not None
        }

    def _validator(self, schema: Mapping[str, Any]) -> Any:
        return jsonschema_rs.Draft202012Validator({**schema, "components": self.components})


def read_document(cluster: Cluster) -> dict[str, Any]:
    """Return the document as the gateway serves it."""
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=30)
    try:
        connection.request("GET", "/openapi.json")
        document: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return document


def operations_of(document: Mapping[str, Any]) -> list[Operation]:
    """Return every method of every path."""
    return [
        Operation(method.upper(), path, description, document["components"])
        for path, methods in document["paths"].items()
        for method, description in methods.items()
    ]
