"""The client against a server that splits its packets anywhere and breaks off."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.client.completion import Answer, Sampling, SseParser, request_fields, stream_answer
from bench.client.http_client import HttpClient, HttpError
from tests.bench.fake_server import (
    HEAD,
    Script,
    chunked,
    delta_chunk,
    fake_server,
    json_answer,
    sse,
    text_chunk,
    usage_chunk,
)

STREAM = sse(text_chunk("Zeit"), text_chunk("läuft 🏃"), usage_chunk(7, 4, cached_tokens=3))


def ask(script: Script, path: str = "/v1/completions", num_requests: int = 1) -> tuple[Answer, int]:
    """Send requests one after another; return the last answer and the number of connections."""

    async def run() -> tuple[Answer, int]:
        async with fake_server(script) as server, asyncio.timeout(40):
            client = HttpClient(server.url)
            try:
                for _ in range(num_requests):
                    answer = Answer()
                    await stream_answer(client, path, Sampling("m").body(4, prompt="p"), lambda: 1.0, answer)
            finally:
                client.close()
            return answer, server.num_connections

    return asyncio.run(run())


@pytest.mark.parametrize("piece_bytes", [1, 2, 7, 100_000])
def test_a_stream_split_into_any_packets_is_read_whole(piece_bytes: int) -> None:
    """Heads, chunk sizes, lines and characters may be cut anywhere."""
    answered = HEAD + chunked(STREAM)
    pieces = [answered[at : at + piece_bytes] for at in range(0, len(answered), piece_bytes)]

    answer, _ = ask(lambda *_: pieces)

    assert "".join(answer.text) == "Zeitläuft 🏃"
    assert answer.is_done
    assert (answer.num_prompt_tokens, answer.num_cached_tokens, answer.num_output_tokens) == (7, 3, 4)
    assert len(answer.token_seconds) == 2


def test_a_connection_is_used_again() -> None:
    """Three requests, one connection."""
    _, num_connections = ask(lambda *_: [HEAD + chunked(STREAM)], num_requests=3)

    assert num_connections == 1


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    """Old servers close instead of counting; the next request opens a connection."""
    answer, num_connections = ask(lambda *_: [b"HTTP/1.1 200 OK\r\n\r\n", STREAM, b""], num_requests=2)

    assert answer.is_done
    assert num_connections == 2


def test_chat_chunks_without_text_are_no_output() -> None:
    """The role comes before the first token and must not count as one."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    thought = {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}
    body = sse(role, thought, delta_chunk("a"), ": a comment")

    answer, _ = ask(lambda *_: [HEAD + chunked(body)], "/v1/chat/completions")

    assert answer.text == ["hm", "a"]


def test_the_end_is_the_only_event_of_tokens_without_text() -> None:
    """Half a character has no text, yet a token came."""
    end = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}

    answer, _ = ask(lambda *_: [HEAD + chunked(sse(end, usage_chunk(3, 1)))])

    assert len(answer.token_seconds) == 1


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([json_answer({"error": "busy"}, "503 Service Unavailable")], "HTTP 503: .*busy"),
        ([HEAD + chunked(sse({"error": {"message": "lost"}}))], "error in the stream: .*lost"),
        ([HEAD + chunked(b'data: {"choices": []}\n\n')], "ended before"),
        ([HEAD + b"40\r\ndata:", b""], "hung up in the middle"),
        ([b"", b""], "hung up"),
        ([b"SSH-2.0-x\r\n\r\n", b""], "does not speak HTTP"),
    ],
)
def test_a_broken_answer_says_how_it_broke(pieces: list[bytes], message: str) -> None:
    """No failure looks like a short answer."""
    with pytest.raises(HttpError, match=message):
        ask(lambda *_: pieces)


def test_a_body_asks_for_a_stream_with_usage_and_an_exact_length() -> None:
    """Greedy, no end of sequence, further fields as given."""
    body = json.loads(Sampling("m", extra={"seed": 1}).body(9, prompt=[1, 2]))

    assert body == {
        "model": "m", "max_tokens": 9, "temperature": 0.0, "stream": True, "prompt": [1, 2], "seed": 1,
        "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip


def test_a_history_precedes_the_question() -> None:
    """As messages in a chat, as text in a completion."""
    history = [("q1", "a1")]

    chat = request_fields("/v1/chat/completions", history, "q2")
    assert [message["content"] for message in chat["messages"]] == ["q1", "a1", "q2"]  # type: ignore[attr-defined]
    assert request_fields("/v1/completions", history, "q2") == {"prompt": "q1a1q2"}


def test_token_ids_in_a_chat_are_refused() -> None:
    """No server takes them there."""
    with pytest.raises(ValueError, match="completions only"):
        request_fields("/v1/chat/completions", [], (1, 2))


def test_an_address_without_a_scheme_is_refused() -> None:
    """Rather than guessed."""
    with pytest.raises(ValueError, match="no http"):
        HttpClient("localhost:80")


def test_events_have_lines_comments_and_either_line_end() -> None:
    """Several data lines are one event; an event without its blank line is not there yet."""
    parser = SseParser()

    assert parser.feed(b"data: a\r\ndata:b\r\n\r\n: hi\nevent: x\n\nda") == ["a\nb"]
    assert parser.feed(b"ta: c\n") == []
    assert parser.feed(b"\n") == ["c"]
