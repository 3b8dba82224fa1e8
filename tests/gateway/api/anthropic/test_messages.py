"""Anthropic's API: through its official client and as raw requests."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from baton.errors import UnavailableError
from baton.gateway.server import RunningGateway
from baton.v1 import generation_pb2 as generation
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, tokens
from gateway.rest import ask
from text.tokenizer_folders import byte_level

TOKENIZER = byte_level()
TURN: dict[str, Any] = {"role": "user", "content": "hello 😀"}
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": [TURN]}


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    """Return the official client."""
    url = f"http://127.0.0.1:{gateway.http_port}"
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def _prompt_tokens(*turns: dict[str, str]) -> list[int]:
    return list(TOKENIZER.apply_chat_template(list(turns), add_generation_prompt=True, return_dict=False))


def _events(data: bytes) -> list[tuple[str, Any]]:
    """Return name and data of each event of a stream."""
    events = [event.split(b"\ndata: ") for event in data.split(b"\n\n") if event]
    return [(name.removeprefix(b"event: ").decode(), json.loads(body)) for name, body in events]


def test_a_message_has_text_reason_and_usage(client: anthropic.Anthropic, cluster: FakeCluster) -> None:
    """Tokens of the prefix cache are counted apart from the others of the prompt."""
    prompt = _prompt_tokens(TURN)
    message = client.messages.create(model=MODEL, max_tokens=len(prompt), messages=[TURN])  # type: ignore[list-item]

    assert [(block.type, block.text) for block in message.content if block.type == "text"] == [("text", "hello 😀")]
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (len(prompt) - 4, 4)
    assert message.usage.output_tokens == len(prompt)
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == prompt
    assert message._request_id
    assert cluster.decodes[0].requests[0].request_id.startswith(message._request_id)


def test_a_stream_is_put_together_by_the_client(client: anthropic.Anthropic) -> None:
    """The same text and usage as the whole message, without half a character."""
    num_tokens = len(_prompt_tokens(TURN))
    options: Any = {"model": MODEL, "max_tokens": num_tokens, "messages": [TURN]}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        texts = list(stream.text_stream)
        message = stream.get_final_message()

    assert "".join(texts) == "hello 😀"
    assert "😀" in texts
    assert message.content[0].text == "hello 😀"  # type: ignore[union-attr]
    assert (message.stop_reason, message.usage) == (whole.stop_reason, whole.usage)


def test_the_events_of_a_stream_come_in_anthropics_order(gateway: RunningGateway) -> None:
    """Each named as its data say; one block, closed before the message."""
    reply = ask(gateway, "/v1/messages", BODY | {"stream": True, "max_tokens": 2}, headers={"x-request-id": "r"})
    events = _events(reply.data)

    num_prompt_tokens = len(_prompt_tokens(TURN))
    usage = {"cache_creation_input_tokens": 0}
    opening = usage | {"input_tokens": num_prompt_tokens, "cache_read_input_tokens": 0, "output_tokens": 0}
    closing = usage | {"input_tokens": num_prompt_tokens - 4, "cache_read_input_tokens": 4, "output_tokens": 2}
    message = {"id": "msg_r", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": opening}
    placement = events[-2][1].pop("baton")
    assert (placement["decode_node"], placement["decode_energy_joules"]) == ("decode-0", 0.25)
    assert events == [
        ("message_start", {"type": "message_start", "message": message}),
        (
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        ),
        (
            "content_block_delta",
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}},
        ),
        ("content_block_stop", {"type": "content_block_stop", "index": 0}),
        (
            "message_delta",
            {
                "type": "message_delta",
                "delta": {"stop_reason": "max_tokens", "stop_sequence": None},
                "usage": closing,
            },
        ),
        ("message_stop", {"type": "message_stop"}),
    ]
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["request-id"] == "r"


def test_an_answer_without_text_is_still_a_message(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """The block is opened and closed, and empty."""

    async def stop(request: Any) -> AsyncIterator[Any]:
        yield finished(request, "decode-0", generation.FINISH_REASON_STOP)

    cluster.decodes[0].script = stop
    names = [name for name, _ in _events(ask(gateway, "/v1/messages", BODY | {"stream": True}).data)]
    whole = ask(gateway, "/v1/messages", BODY).body

    assert names == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": ""}], "end_turn")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_stop_sequence_is_cut_and_named(client: anthropic.Anthropic, is_stream: bool) -> None:
    """Which of them it was, too."""
    options: Any = {"model": MODEL, "max_tokens": 50, "messages": [TURN], "stop_sequences": ["xyz", "o 😀"]}
    if is_stream:
        with client.messages.stream(**options) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(**options)

    assert message.content[0].text == "hell"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "o 😀")


def test_system_and_blocks_are_rendered_by_the_template(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Blocks of one turn are joined; marks for the cache change nothing."""
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", **mark}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": None}]},
        {"role": "user", "content": "d"},
    ]
    system = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief", **mark}]
    assert ask(gateway, "/v1/messages", BODY | {"messages": messages, "system": system}).status == 200
    assert ask(gateway, "/v1/messages", BODY | {"messages": messages, "system": "be brief"}).status == 200

    turns = [("system", "be brief"), ("user", "ab"), ("assistant", "c"), ("user", "d")]
    expected = _prompt_tokens(*({"role": role, "content": content} for role, content in turns))
    assert [list(request.prompt_token_ids) for request in cluster.decodes[0].requests] == [expected] * 2


def test_an_answer_that_is_begun_is_continued(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Its turn stays open, and the text does not repeat it."""
    messages = [TURN, {"role": "assistant", "content": "hello wo"}]
    reply = ask(gateway, "/v1/messages", BODY | {"messages": messages})
    count = ask(gateway, "/v1/messages/count_tokens", {"model": MODEL, "messages": messages})

    prompt = list(cluster.decodes[0].requests[0].prompt_token_ids)
    assert TOKENIZER.decode(prompt) == "<|user|>hello 😀<|end|><|assistant|>hello wo"
    assert count.body["input_tokens"] == len(prompt)
    assert reply.body["content"][0]["text"].startswith("hello")  # the node echoes the prompt's text


def test_every_parameter_reaches_the_node(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Under the proto's name; what asks for nothing is taken."""
    neutral = {"tools": [], "thinking": {"type": "disabled"}, "service_tier": "auto", "metadata": {"user_id": "me"}}
    reply = ask(gateway, "/v1/messages", BODY | {"temperature": 0.5, "top_p": 0.25, "top_k": 3} | neutral)

    sampling = cluster.decodes[0].requests[0].sampling
    assert reply.status == 200
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_token_count) == (0.5, 0.25, 3, 4)


def test_tokens_are_counted_as_they_would_be_used(client: anthropic.Anthropic, cluster: FakeCluster) -> None:
    """Nothing is generated."""
    count = client.messages.count_tokens(model=MODEL, system="be brief", messages=[TURN])  # type: ignore[list-item]

    assert count.input_tokens == len(_prompt_tokens({"role": "system", "content": "be brief"}, TURN))
    assert cluster.router.requests == []


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (300, r"prompt is too long: 3\d\d tokens > 255 maximum"),
        (
            100_000,
            "prompt is too long: This model's maximum context length is 256 tokens. Your messages would take far more.",
        ),
    ],
)
def test_a_prompt_beyond_the_context_is_told_in_anthropics_words(
    gateway: RunningGateway, length: int, message: str
) -> None:
    """Claude Code compacts its conversation when it reads them."""
    body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x" * length}]}
    reply = ask(gateway, "/v1/messages", body)

    assert reply.status == 400
    assert re.fullmatch(message, reply.body["error"]["message"])


def test_a_limit_beyond_the_context_ends_where_the_context_does(gateway: RunningGateway, cluster: FakeCluster) -> None:
    """Clients name what their models can at most; the reason says that it was the context."""
    reply = ask(gateway, "/v1/messages", {"model": MODEL, "max_tokens": 32_000, "messages": [TURN]})

    limit = cluster.decodes[0].requests[0].sampling.max_token_count
    assert reply.body["stop_reason"] == "model_context_window_exceeded"
    assert reply.body["usage"]["output_tokens"] == limit
    assert limit + len(cluster.decodes[0].requests[0].prompt_token_ids) == cluster.context_tokens


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tools": [{"name": "x"}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"n": 2}, "n"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 2**40}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [TURN, {"role": "assistant", "content": None}]}, "messages[1].content"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]},
            "messages[0].content[0].type",
        ),
        ({"system": [{"type": "document", "source": {}}]}, "system[0].type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(gateway: RunningGateway, fields: dict[str, Any], name: str) -> None:
    """400 with Anthropic's error object."""
    reply = ask(gateway, "/v1/messages", BODY | fields, headers={"x-request-id": "mine"})

    assert reply.status == 400
    assert (reply.body["type"], reply.body["error"]["type"]) == ("error", "invalid_request_error")
    assert name in reply.body["error"]["message"]
    assert reply.body["request_id"] == "mine"


def test_max_tokens_is_required(gateway: RunningGateway) -> None:
    """As Anthropic has it."""
    reply = ask(gateway, "/v1/messages", {"model": MODEL, "messages": [TURN]})

    assert (reply.status, reply.body["error"]["message"]) == (400, "Missing required parameter: `max_tokens`")


def test_an_unknown_model_is_not_found(client: anthropic.Anthropic) -> None:
    """As the client's own class of error, for both endpoints."""
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(model="other", max_tokens=1, messages=[TURN])  # type: ignore[list-item]
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="other", messages=[TURN])  # type: ignore[list-item]


def test_a_key_is_asked_for_in_anthropics_words(loop: Loop, cluster: FakeCluster, tmp_path: Path) -> None:
    """The client sends it as x-api-key."""
    (tmp_path / "keys").write_text("me:secret-a\n")
    with loop.running(cluster, api_keys_file=tmp_path / "keys") as running:
        url = f"http://127.0.0.1:{running.http_port}"
        options: Any = {"model": MODEL, "max_tokens": 1, "messages": [TURN]}
        with anthropic.Anthropic(base_url=url, api_key="secret-a", max_retries=0) as client:
            assert client.messages.create(**options).usage.output_tokens == 1
        with (
            anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError, match="authentication_error"),
        ):
            client.messages.create(**options)


def test_a_stream_that_breaks_ends_with_an_error_event(loop: Loop, cluster: FakeCluster) -> None:
    """After the text that came; there is no message_stop."""

    async def fail(request: Any) -> AsyncIterator[Any]:
        yield tokens(0, [echo_token(request, 1)])
        raise UnavailableError("it burns")

    for node in cluster.decodes:
        node.script = fail
    with loop.running(cluster, max_attempts=1) as running:
        broken = ask(running, "/v1/messages", BODY | {"stream": True})

    events = _events(broken.data)
    assert [name for name, _ in events[:2]] == ["message_start", "content_block_start"]
    assert events[-1][0] == "error"
    assert events[-1][1]["error"]["type"] == "overloaded_error"
