"""GET /openapi.json."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest

from baton.gateway.server import RunningGateway
from gateway.bodies import ROUTES, SMALLEST
from gateway.fake_cluster import MODEL
from gateway.rest import ask


@pytest.fixture
def document(gateway: RunningGateway) -> Any:
    """Return the document."""
    return ask(gateway, "/openapi.json").body


def _schema(document: Any, path: str) -> Any:
    """Return the schema of a path's body."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    reference = content["application/json"]["schema"]["$ref"]
    return document["components"]["schemas"][reference.rpartition("/")[2]]


def test_every_route_is_described_and_every_page_is_there(gateway: RunningGateway, document: Any) -> None:
    """What the document names answers, and nothing else is served."""
    pages = [path for path, methods in document["paths"].items() if "get" in methods]

    assert document["openapi"] == "3.1.0"
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posts == {*ROUTES, "/instance", "/v1/instance-links", "/ping", "/v1/models/load", "/v1/models/unload"}
    examples = {path: path.replace("{model}", MODEL).replace("{path}", "instances") for path in pages}
    examples |= {"/instance/previews": f"/instance/previews?model_id={MODEL}"}
    statuses = {path: ask(gateway, example).status for path, example in examples.items()}
    assert statuses.pop("/instance/{instance_id}") == 404
    pages.remove("/instance/{instance_id}")
    assert statuses | {"/ready": 200} == dict.fromkeys(pages, 200)  # it may be too early to be ready


def test_every_process_tells_the_same_document() -> None:
    """What is generated of it, clients and requests of fuzzers, does not change with each start."""
    told = """
from unittest.mock import Mock
from baton.gateway.api import openapi, routes
endpoints = routes.model_endpoints(Mock(), Mock(answer_bench=Mock(__name__="answer_bench")))
print(openapi.openapi_body(endpoints, is_strict=True))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    documents = {
        subprocess.run(
            [sys.executable, "-c", told], env=environment | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(documents) == 1


def test_every_reference_leads_somewhere(gateway: RunningGateway) -> None:
    """Schemas refer to each other by name."""
    text = ask(gateway, "/openapi.json").data.decode()
    names = set(ask(gateway, "/openapi.json").body["components"]["schemas"])

    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= names


@pytest.mark.parametrize("path", ROUTES)
def test_required_fields_are_required_and_enough(gateway: RunningGateway, document: Any, path: str) -> None:
    """The smallest body that the schema allows is served; without one of its fields it is not."""
    schema, body = _schema(document, path), SMALLEST[path]

    assert set(schema["required"]) <= set(body)
    assert "additionalProperties" not in schema
    assert ask(gateway, path, body).status == 200
    for name in schema["required"]:
        assert ask(gateway, path, {key: value for key, value in body.items() if key != name}).status == 400


@pytest.mark.parametrize("path", ROUTES)
def test_values_that_ask_for_nothing_are_taken_as_described(gateway: RunningGateway, document: Any, path: str) -> None:
    """Each that the document allows a field that is not served."""
    body = SMALLEST[path]
    unserved = {
        name: schema["enum"]
        for name, schema in _schema(document, path)["properties"].items()
        if str(schema.get("description", "")).startswith("Not served")
    }

    assert bool(unserved) == bool(ROUTES[path].unserved.promises)
    for name, values in unserved.items():
        assert [ask(gateway, path, body | {name: value}).status for value in values] == [200] * len(values)
        assert ask(gateway, path, body | {name: "none of these"}).status == 400


def test_probes_are_described_as_open(document: Any) -> None:
    """The rest may need a key."""
    assert document["paths"]["/health"]["get"]["security"] == []
    assert {"bearer": []} in document["security"]


def test_errors_are_described_in_the_words_of_their_api(document: Any) -> None:
    """Each has its own; what several APIs have answers in the words of its caller."""
    schemas = {
        path: operation["responses"]["default"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }
    anthropic, openai = ({"$ref": f"#/components/schemas/{name}"} for name in ("ErrorBody", "ErrorAnswer"))

    assert schemas["/v1/messages"] == schemas["/v1/messages/count_tokens"] == anthropic
    assert schemas["/v1/chat/completions"] == schemas["/v1/responses"] == openai
    assert schemas["/v1/models"] == {"anyOf": [openai, anthropic]}


def test_every_endpoint_that_answers_with_json_says_with_which(document: Any) -> None:
    """A reference or a type, not just anything; the document itself is the exception."""
    schemas = {
        path: operation["responses"]["200"]["content"].get("application/json", {}).get("schema")
        for path, methods in document["paths"].items()
        for operation in methods.values()
    }

    assert [path for path, schema in schemas.items() if not schema] == ["/metrics", "/openapi.json"]
