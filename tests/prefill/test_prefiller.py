"""Streams of one attempt: the last one goes on alone."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from baton.errors import AttemptReusedError, BatonError, UnavailableError
from baton.internal.v1.prefill_service_pb2 import PrefillRequest
from baton.prefill.prefiller import AttemptStreams


def request_of(stream_number: int, attempt: int = 1) -> PrefillRequest:
    """Return a request."""
    return PrefillRequest(request_id="r", attempt=attempt, stream_number=stream_number)


def test_a_later_stream_ends_the_earlier_one() -> None:
    """With a reason; those of other attempts go on."""
    streams, ended, others = AttemptStreams(), list[BatonError](), list[BatonError]()
    with ExitStack() as stack:
        stack.enter_context(streams.running(request_of(0), ended.append))
        stack.enter_context(streams.running(request_of(0, attempt=2), others.append))
        stack.enter_context(streams.running(request_of(2), others.append))

        assert [error.reason for error in ended] == ["ATTEMPT_REUSED"]
        assert others == []


@pytest.mark.parametrize("number", [0, 1])
def test_a_stream_of_the_same_or_a_smaller_number_is_refused(number: int) -> None:
    """It has been given up by the caller, or was sent twice."""
    streams, ended = AttemptStreams(), list[BatonError]()
    with (
        streams.running(request_of(1), ended.append),
        pytest.raises(AttemptReusedError),
        streams.running(request_of(number), ended.append),
    ):
        pass

    assert ended == []


def test_a_stream_that_has_ended_is_forgotten() -> None:
    """And one that was ended by a later one leaves that one entered."""
    streams, ended = AttemptStreams(), list[BatonError]()
    earlier = streams.running(request_of(0), ended.append)
    earlier.__enter__()
    with streams.running(request_of(1), ended.append):
        earlier.__exit__(None, None, None)
        with pytest.raises(AttemptReusedError), streams.running(request_of(1), ended.append):
            pass
    with streams.running(request_of(0), ended.append):
        pass

    assert len(ended) == 1


def test_all_streams_are_given_up_where_a_pass_hangs() -> None:
    """With the reason, each once."""
    streams, ended = AttemptStreams(), list[BatonError]()
    error = UnavailableError("a pass hangs", reason="ENGINE_HUNG")
    with streams.running(request_of(0), ended.append), streams.running(request_of(0, attempt=2), ended.append):
        streams.end_all(error)

    assert ended == [error, error]
