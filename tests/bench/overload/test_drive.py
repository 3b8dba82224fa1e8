"""An open load against a server that answers, refuses or hangs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.local_cluster import Endpoints
from bench.overload.drive import Drive, Question, drive
from tests.bench.fake_server import HEAD, chunked, fake_server, json_answer, sse, text_chunk, usage_chunk

DEGRADED = {"choices": [], "baton": {"degraded_max_tokens": 2, "queue_seconds": 0.0, "prefill_seconds": 0.0}}
GOOD = HEAD + chunked(sse(text_chunk("x"), text_chunk("y"), usage_chunk(3, 2), DEGRADED))
REFUSED = json_answer({"error": {"message": "later"}}, "429 Too Many Requests")
BROKEN = json_answer({"error": {"message": "bug"}}, "500 Internal Server Error")


def driven(answers: Sequence[bytes]) -> Drive:
    """Return what comes of a short load whose requests are answered in turn."""
    number = iter(range(10_000))

    def script(_path: str, _body: dict[str, Any]) -> Sequence[bytes]:
        return [answers[next(number) % len(answers)]]

    async def run() -> Drive:
        async with fake_server(script) as server, asyncio.timeout(40):
            endpoints = Endpoints(server.url, "", os.getpid())
            return await drive(endpoints, Question(3, 2), {"a": 100.0, "b": 50.0}, 0.3, "seed", 0.2)

    return asyncio.run(run())


def test_every_request_has_an_end() -> None:
    """Answered, refused, broken, or without an end when the run is over."""
    hanging = HEAD + b"5\r\n: hi\n\r\n"

    ends = Counter(sample.end for sample in driven([GOOD, REFUSED, BROKEN, hanging]).samples)

    assert set(ends) == {"complete", "refused", "failed", "abandoned"}
    assert max(ends.values()) - min(ends.values()) <= 2


def test_what_the_server_cut_is_told_apart() -> None:
    """By what it says of the placement."""
    samples = driven([GOOD]).samples

    assert all(sample.is_degraded and sample.num_output_tokens == 2 for sample in samples)
    assert {sample.tenant for sample in samples} == {"a", "b"}
    assert all(sample.ttft_seconds is not None and sample.tpot_seconds is not None for sample in samples)


def test_a_seed_gives_the_same_arrivals_to_whatever_answers() -> None:
    """So that policies are compared by the same load."""
    first, second = (driven(answers).samples for answers in ([GOOD], [REFUSED]))

    assert Counter(sample.tenant for sample in first) == Counter(sample.tenant for sample in second)
