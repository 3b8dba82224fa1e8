"""POST /v1/responses: through the official client and as raw requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from baton.errors import UnavailableError
from baton.gateway.server import RunningGateway
from baton.v1 import generation_pb2 as generation
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, tokens
from gateway.rest import ask
from text.tokenizer_folders import byte_level

TOKENIZER = byte_level()
TEXT = "hello 😀"
BODY: dict[str, Any] = {"model": MODEL, "input": TEXT, "max_output_tokens": 2}


def _prompt_tokens(*turns: tuple[str, str]) -> list[int]:
    messages = [{"role": role, "content": content} for role, content in turns]
    return list(TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))


def _events(data: bytes) -> list[tuple[str, Any]]:
    """Return name and data of each event of a stream."""
    events = [event.split(b"\ndata: ") for event in data.split(b"\n\n") if event]
    return [(name.removeprefix(b"event: ").decode(), json.loads(body)) for name, body in events]


def test_a_response_has_text_usage_and_placement(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Cut by the limit it is incomplete, and says why."""
    prompt = _prompt_tokens(("user", TEXT))
    response = client.responses.create(model=MODEL, input=TEXT, max_output_tokens=len(prompt), store=False)

    assert response.output_text == TEXT
    assert (response.object, response.model, response.status) == ("response", MODEL, "incomplete")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert (response.store, response.previous_response_id, response.error) == (False, None, None)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (len(prompt), len(prompt))
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.total_tokens == 2 * len(prompt)
    assert response.baton["decode_node"] == "decode-0"  # type: ignore[attr-defined]
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == prompt


def test_an_answer_that_ends_by_itself_is_completed(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Message and response alike."""
    node = cluster.decodes[0]

    async def stop(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, TOKENIZER("hello")["input_ids"])
        yield finished(request, node.node_id, generation.FINISH_REASON_STOP)

    node.script = stop
    response = client.responses.create(model=MODEL, input=TEXT)

    assert (response.status, response.incomplete_details) == ("completed", None)
    assert response.output[0].status == "completed"  # type: ignore[union-attr]
    assert response.output_text == "hello"


def test_a_stream_is_put_together_by_the_client(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The same text and usage as the whole response, without half a character."""
    node = cluster.decodes[0]

    async def stop(request: Any) -> AsyncIterator[Any]:
        ids = TOKENIZER(TEXT)["input_ids"]
        for index, token_id in enumerate(ids):
            yield tokens(index, [token_id])
        yield finished(request, node.node_id, generation.FINISH_REASON_STOP)

    node.script = stop
    options: Any = {"model": MODEL, "input": TEXT}
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()

    assert "".join(deltas) == response.output_text == TEXT
    assert "😀" in deltas
    assert (response.status, response.usage) == (whole.status, whole.usage)


def test_the_events_of_a_stream_come_in_openais_order(gateway: RunningGateway) -> None:
    """Each named as its data say, and numbered from 0."""
    reply = ask(gateway, "/v1/responses", BODY | {"stream": True}, headers={"x-request-id": "r"})
    events = _events(reply.data)

    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [(data["type"], data["sequence_number"]) for _, data in events] == [
        (name, number) for number, (name, _) in enumerate(events)
    ]
    place = {"item_id": "msg_r", "output_index": 0, "content_index": 0}
    delta = {"type": "response.output_text.delta", "delta": "hello", "logprobs": [], "sequence_number": 4}
    assert events[4][1] == place | delta
    assert events[0][1]["response"]["output"] == []
    assert (events[0][1]["response"]["status"], events[0][1]["response"]["usage"]) == ("in_progress", None)
    last = events[-1][1]["response"]
    assert last["output"] == [events[-2][1]["item"]]
    assert last["output"][0]["content"] == [events[-3][1]["part"]]
    assert last["output"][0]["content"][0]["text"] == events[-4][1]["text"] == "hello"
    assert not reply.data.endswith(b"[DONE]\n\n")


def test_items_and_instructions_are_rendered_by_the_template(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Instructions come first; an answer may be sent back as it came."""
    first = client.responses.create(model=MODEL, input="hello", max_output_tokens=3)
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "hel"}, {"type": "input_text", "text": "lo"}]},
        *(item.model_dump() for item in first.output),
        {"type": "message", "role": "developer", "content": "be brief"},
        {"role": "user", "content": "again"},
    ]
    client.responses.create(model=MODEL, input=items, instructions="be kind", max_output_tokens=1)

    expected = _prompt_tokens(
        ("system", "be kind"),
        ("user", "hello"),
        ("assistant", first.output_text),
        ("system", "be brief"),
        ("user", "again"),
    )
    assert list(cluster.decodes[0].requests[1].prompt_token_ids) == expected


def test_every_parameter_reaches_the_node_and_comes_back(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """What asks for nothing is taken."""
    told = {"temperature": 0.5, "top_p": 0.25, "metadata": {"a": "b"}, "user": "me", "max_output_tokens": 2}
    neutral = {"store": False, "tools": [], "tool_choice": "auto", "text": {"format": {"type": "text"}}, "include": []}
    reply = ask(gateway, "/v1/responses", BODY | told | neutral)

    sampling = cluster.decodes[0].requests[0].sampling
    assert reply.status == 200
    assert (sampling.temperature, sampling.top_p, sampling.max_token_count) == (0.5, 0.25, 2)
    assert {name: reply.body[name] for name in told} == told


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "invalid_value"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"input": None}, "input", "invalid_type"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input[0].type",
            "unsupported_parameter",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 1000}, "input", "context_length_exceeded"),
        ({"input": "x" * 100_000}, "input", "context_length_exceeded"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    gateway: RunningGateway, cluster: FakeCluster, fields: dict[str, Any], param: str, code: str
) -> None:
    """400 with param and code, and nothing is placed."""
    assert ask(gateway, "/v1/responses", BODY | fields).error == (400, param, code)
    assert cluster.router.requests == []


def test_an_unknown_model_is_not_found(gateway: RunningGateway) -> None:
    """With OpenAI's code."""
    assert ask(gateway, "/v1/responses", BODY | {"model": "other"}).error == (404, "model", "model_not_found")


def test_a_stream_that_breaks_ends_with_a_numbered_error_event(loop: Loop, cluster: FakeCluster) -> None:
    """After the text that came; the response is not completed."""

    async def fail(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 1)])
        raise UnavailableError("it burns")

    for node in cluster.decodes:
        node.script = fail
    with loop.running(cluster, max_attempts=1) as running:
        url = f"http://127.0.0.1:{running.http_port}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
            events = list(client.responses.create(model=MODEL, input=TEXT, stream=True))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "error"
    assert events[-1].message == "it burns"
