"""Forms of the output: by each field and endpoint, to what the nodes get; and their refusals, back to the field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton.errors import BatonError, ConstraintError, InvalidFieldError, NonFiniteLogitsError
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster, finished, tokens
from gateway.rest import ask

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    COMPLETIONS: {"model": MODEL, "prompt": "hi", "max_tokens": 2},
    RESPONSES: {"model": MODEL, "input": "hi", "max_output_tokens": 2},
}
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "ä": {"enum": [1, "ö"]}}, "required": ["z"]}
SCHEMA_TEXT = json.dumps(SCHEMA, ensure_ascii=False, separators=(",", ":"))
CLOSED_TEXT = SCHEMA_TEXT[:-1] + ',"additionalProperties":false}'
ANY_OBJECT = '{"type":"object"}'

FORMS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"response_format": {"type": "json_object"}}, ("json_schema", ANY_OBJECT)),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        ("json_schema", CLOSED_TEXT),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        ("json_schema", SCHEMA_TEXT),
    ),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, ("json_schema", ANY_OBJECT)),
    ({"response_format": {"type": "regex", "regex": "a+"}}, ("regex", "a+")),
    ({"response_format": {"type": "grammar", "grammar": 'start: "a"'}}, ("lark", 'start: "a"')),
    ({"structured_outputs": {"json": SCHEMA}}, ("json_schema", SCHEMA_TEXT)),
    ({"structured_outputs": {"json": SCHEMA_TEXT}}, ("json_schema", SCHEMA_TEXT)),
    (
        {"structured_outputs": {"json": SCHEMA_TEXT, "disable_additional_properties": True}},
        ("json_schema", CLOSED_TEXT),
    ),
    ({"structured_outputs": {"json_object": True}}, ("json_schema", ANY_OBJECT)),
    ({"structured_outputs": {"regex": "a+"}}, ("regex", "a+")),
    ({"structured_outputs": {"choice": ["yes", 'n"o']}}, ("lark", r'start: "yes" | "n\"o"')),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, ("lark", 'start: "a"')),
    ({"guided_json": SCHEMA}, ("json_schema", SCHEMA_TEXT)),
    ({"guided_regex": "a+"}, ("regex", "a+")),
    ({"guided_choice": ["a", "ä\n"]}, ("lark", r'start: "a" | "ä\n"')),
    ({"guided_grammar": 'start: "a"'}, ("lark", 'start: "a"')),
]
TEXT_FORMS: list[tuple[dict[str, Any], tuple[str, str]]] = [
    ({"type": "json_object"}, ("json_schema", ANY_OBJECT)),
    ({"type": "json_schema", "name": "n", "schema": SCHEMA}, ("json_schema", SCHEMA_TEXT)),
]


def constraint_of(cluster: FakeCluster) -> tuple[str, str]:
    """Return kind and text of the constraint that the last request brought to a node."""
    form = next(node.requests[-1] for node in cluster.decodes if node.requests).sampling.structured_output
    kind = form.WhichOneof("constraint")
    assert kind is not None
    return kind, getattr(form, kind)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("fields", "constraint"), FORMS)
def test_each_field_becomes_a_constraint(
    gateway: RunningGateway, cluster: FakeCluster, path: str, fields: dict[str, Any], constraint: tuple[str, str]
) -> None:
    """Properties of a schema keep their order, in which they are generated."""
    assert ask(gateway, path, BODIES[path] | fields).status == 200
    assert constraint_of(cluster) == constraint


@pytest.mark.parametrize(("form", "constraint"), TEXT_FORMS)
def test_the_format_of_a_response_becomes_a_constraint(
    gateway: RunningGateway, cluster: FakeCluster, form: dict[str, Any], constraint: tuple[str, str]
) -> None:
    """And the answer repeats it."""
    answer = ask(gateway, RESPONSES, BODIES[RESPONSES] | {"text": {"format": form}})

    assert answer.status == 200
    assert constraint_of(cluster) == constraint
    assert answer.body["text"] == {"format": form}


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}])
def test_no_form_is_no_constraint(gateway: RunningGateway, cluster: FakeCluster, fields: dict[str, Any]) -> None:
    """The nodes compile nothing."""
    assert ask(gateway, CHAT, BODIES[CHAT] | fields).status == 200
    assert not cluster.decodes[0].requests[0].sampling.HasField("structured_output")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
        (COMPLETIONS, {"guided_json": {}}, "guided_json"),
        (CHAT, {"structured_outputs": {"json": {}}}, "structured_outputs.json"),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
def test_what_a_node_refuses_is_named_as_the_client_knows_it(
    gateway: RunningGateway, cluster: FakeCluster, path: str, fields: dict[str, Any], param: str, is_stream: bool
) -> None:
    """With status 400 also where a stream was asked for, and the node's words."""

    async def refuse(request: Any) -> AsyncIterator[Any]:
        raise InvalidFieldError("structured_output.json_schema", "keyword 'not' is not supported")
        yield tokens(0, [1])

    for node in cluster.decodes:
        node.script = refuse
    answer = ask(gateway, path, BODIES[path] | fields | {"stream": is_stream})

    if path == RESPONSES and is_stream:  # its stream opens before there is a token
        assert param in answer.data.decode()
    else:
        assert answer.error == (400, param, "invalid_value")
    assert "keyword 'not' is not supported" in answer.data.decode()


def test_a_complete_form_ends_without_a_stop_token(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """The last token is text, and the reason is stop."""
    node = cluster.decodes[0]

    async def complete(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, list(request.prompt_token_ids[-2:]))
        yield finished(request, node.node_id, 1)

    node.script = complete
    answer = ask(gateway, COMPLETIONS, BODIES[COMPLETIONS] | {"guided_regex": "hi", "prompt": "hi"}).body

    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["text"] != ""


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_form_that_becomes_too_complex_is_named(
    gateway: RunningGateway, cluster: FakeCluster, is_stream: bool
) -> None:
    """The output so far reaches a stream, whose last event is the error; elsewhere the status tells."""

    async def give_up(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, list(request.prompt_token_ids[-1:]))
        raise InvalidFieldError("structured_output.lark", "too complex after 1 tokens of output")

    for node in cluster.decodes:
        node.script = give_up
    fields = {"response_format": {"type": "grammar", "grammar": "start: "}, "prompt": "hi", "stream": is_stream}
    answer = ask(gateway, COMPLETIONS, BODIES[COMPLETIONS] | fields)

    last = answer.data.removesuffix(b"\n\n").rpartition(b"data: ")[2]
    error = json.loads(last)["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "response_format",
        "invalid_value",
    )
    assert answer.status == (200 if is_stream else 400)
    assert (b'"text":"i"' in answer.data) == is_stream


def test_form_and_tools_exclude_each_other(gateway: RunningGateway) -> None:
    """Refused by name rather than one of them dropped."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = ask(gateway, CHAT, BODIES[CHAT] | {"tools": tools, "response_format": {"type": "json_object"}})

    assert answer.error == (400, "tools", "invalid_value")


@pytest.mark.parametrize(
    ("error", "told", "num_attempts"),
    [
        (NonFiniteLogitsError("not finite"), (422, None, "quarantined"), 2),
        (ConstraintError("left its form"), (500, None, "structured_output_failed"), 1),
    ],
)
def test_a_failure_of_the_model_is_tried_elsewhere_only_where_a_node_may_be_why(
    gateway: RunningGateway, cluster: FakeCluster, error: BatonError, told: tuple[object, ...], num_attempts: int
) -> None:
    """One node's memory may spoil numbers; what two nodes say is the request's own."""

    async def fail(request: Any) -> AsyncIterator[Any]:
        raise error
        yield tokens(0, [1])

    for node in cluster.decodes:
        node.script = fail
    answer = ask(gateway, CHAT, BODIES[CHAT])

    assert answer.error == told
    assert sum(len(node.requests) for node in cluster.decodes) == num_attempts
