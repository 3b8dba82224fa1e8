"""Sessions against a server: their order, their history, their samples."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from bench.client.completion import Sampling
from bench.client.http_client import HttpClient
from bench.client.load import LoadSettings, run_load
from bench.client.metrics import RequestSample
from bench.workloads.dataset import Session, Turn
from tests.bench.fake_server import (
    HEAD,
    FakeServer,
    Script,
    chunked,
    delta_chunk,
    fake_server,
    json_answer,
    sse,
    text_chunk,
    usage_chunk,
)

ANSWER = [HEAD + chunked(sse(text_chunk("x"), text_chunk("y"), usage_chunk(5, 2)))]


def load(
    script: Script, sessions: Sequence[Session], path: str = "/v1/completions", **settings: Any
) -> tuple[list[RequestSample], FakeServer]:
    """Run the sessions, all at once; return samples and server."""

    async def run() -> tuple[list[RequestSample], FakeServer]:
        async with fake_server(script) as server, asyncio.timeout(40):
            client = HttpClient(server.url)
            try:
                load_settings = LoadSettings(path, Sampling("m"), **settings)
                return await run_load(client, sessions, [0.0] * len(sessions), load_settings), server
            finally:
                client.close()

    return asyncio.run(run())


def test_every_request_has_a_sample_in_the_order_of_the_sessions() -> None:
    """Counts are the server's, times ascend."""
    samples, _ = load(lambda *_: ANSWER, [Session((Turn((1, 2, 3), 2),))] * 4)

    assert [sample.num_completion_tokens for sample in samples] == [2] * 4
    assert [sample.session for sample in samples] == [0, 1, 2, 3]
    assert all(0 <= one.scheduled_seconds <= one.sent_seconds <= one.token_seconds[0] for one in samples)
    assert all(one.token_seconds[-1] <= one.finished_seconds for one in samples)


def test_a_later_turn_has_the_servers_answer_before_it() -> None:
    """The conversation grows by question and answer."""
    answer = [HEAD + chunked(sse(delta_chunk("yes"), usage_chunk(5, 1)))]
    session = Session((Turn("one?", 1), Turn("two?", 1)))

    samples, server = load(lambda *_: answer, [session], "/v1/chat/completions")

    assert [sample.turn for sample in samples] == [0, 1]
    assert [message["content"] for message in server.requests[1][1]["messages"]] == ["one?", "yes", "two?"]


def test_a_failed_turn_ends_its_session_and_no_other() -> None:
    """The failure is in the sample, with its cause."""

    def script(_path: str, body: dict[str, Any]) -> Sequence[bytes]:
        return [json_answer({"error": "full"}, "503 Busy")] if body["prompt"] == "bad" else ANSWER

    samples, _ = load(script, [Session((Turn("bad", 1), Turn("more", 1))), Session((Turn("good", 2),))])

    assert [(sample.session, sample.is_ok) for sample in samples] == [(0, False), (1, True)]
    assert "HTTP 503" in str(samples[0].error)


def test_an_answer_that_does_not_come_fails_after_the_timeout() -> None:
    """A stuck server does not stick the run."""
    samples, _ = load(lambda *_: [HEAD], [Session((Turn("p", 1),))], timeout_seconds=0.05)

    assert samples[0].error == "no answer within 0.05 seconds"


def test_a_server_that_refuses_connections_fails_every_request() -> None:
    """The run ends with samples, not with a traceback."""

    async def run() -> list[RequestSample]:
        settings = LoadSettings("/v1/completions", Sampling("m"))
        return await run_load(HttpClient("http://127.0.0.1:1"), [Session((Turn("p", 1),))], [0.0], settings)

    (sample,) = asyncio.run(run())

    assert not sample.is_ok
    assert "Connect" in str(sample.error)


def test_sessions_beyond_the_limit_wait_in_the_client() -> None:
    """The wait is lateness: the second session is sent after the first has finished."""
    first, second = load(lambda *_: ANSWER, [Session((Turn("p", 2),))] * 2, max_in_flight=1)[0]

    assert second.sent_seconds >= first.finished_seconds
    assert second.scheduled_seconds == 0.0
