"""The fast path over a link that cuts, stalls, loses, doubles and changes bytes: right tokens, nothing leaked."""

from __future__ import annotations

import asyncio
import random

import pytest

from decode.kv_stream.faulty_link import KINDS, Fault, FaultyLink, Kind
from decode.kv_stream.test_transport import EXPECTED, PROMPT
from decode.pair import TIMEOUT_SECONDS, ChangingTimeouts, Pair, generate, request_of, with_pair

IMPATIENT_SECONDS = 0.4
"""For which a stream that has met a fault may be silent."""
NUM_FAULTS = 12
"""Of each kind, at random places of the stream."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_anywhere_in_the_stream_costs_no_token(kind: Kind) -> None:
    """Every request ends with the right tokens, remote or computed here; every block of both nodes is free then."""
    drawn = random.Random(f"link {kind}")
    timeouts = ChangingTimeouts(TIMEOUT_SECONDS, TIMEOUT_SECONDS)

    async def client(pair: Pair) -> None:
        async with FaultyLink(pair.fast_port) as link:
            await pair.reconnect(2, f"127.0.0.1:{link.port}")
            await generate(pair, request_of(PROMPT, request_id="whole", bypass_prefix_cache=True))
            num_bytes = link.num_bytes
            assert num_bytes > 1000
            timeouts.first_frame_seconds = timeouts.frame_seconds = IMPATIENT_SECONDS
            for number in range(NUM_FAULTS):
                await pair.reconnect(number + 3, f"127.0.0.1:{link.port}")
                link.fault = Fault(kind, drawn.randrange(num_bytes), drawn.randint(1, 64))
                answer = await generate(pair, request_of(PROMPT, request_id=f"r{number}", bypass_prefix_cache=True))

                assert answer.token_ids == EXPECTED, link.fault
                await pair.settle()

    with_pair(client, transport="fast", timeouts=timeouts, linger_seconds=0.0, timeout_seconds=3 * TIMEOUT_SECONDS)


def test_a_fault_of_one_connection_is_none_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    """The connection is made again, and no bug was met on the way."""

    async def client(pair: Pair) -> None:
        async with FaultyLink(pair.fast_port, Fault("cut", 700)) as link:
            await pair.reconnect(2, f"127.0.0.1:{link.port}")
            broken = await generate(pair, request_of(PROMPT, request_id="broken", bypass_prefix_cache=True))
            link.fault = None
            sound = await generate(pair, request_of(PROMPT, request_id="sound", bypass_prefix_cache=True))

        assert broken.token_ids == sound.token_ids == EXPECTED
        assert broken.summary.fallback_reason == "UNAVAILABLE"
        assert sound.summary.fallback_reason == ""
        assert "failed" not in caplog.text

    with_pair(client, transport="fast")


def test_cancelling_in_the_middle_of_a_stream_leaves_the_connection_to_others() -> None:
    """The cancelled stream's late frames land nowhere."""

    async def client(pair: Pair) -> None:
        async with FaultyLink(pair.fast_port) as link:
            await pair.reconnect(2, f"127.0.0.1:{link.port}")
            for number in range(20):
                cancelled = asyncio.create_task(generate(pair, request_of(PROMPT, request_id=f"c{number}")))
                for _ in range(number * 3):
                    await asyncio.sleep(0)
                cancelled.cancel()
                await asyncio.wait({cancelled})
            answer = await generate(pair, request_of(PROMPT, request_id="r"))

            assert answer.token_ids == EXPECTED
            assert answer.summary.fallback_reason == ""
            assert link.num_connections == 1

    with_pair(client, transport="fast")
