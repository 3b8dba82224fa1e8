"""Which KV streams run for which attempt. A stream that resumes a broken one ends the broken one's work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from baton.errors import AttemptReusedError, BatonError
from baton.v1 import prefill_service_pb2


class _Running(NamedTuple):
    stream_number: int
    end: Callable[[BatonError], None]


class AttemptStreams:
    """The running streams by attempt. Safe from any thread.

    Invariant: of one attempt the stream with the greatest number alone goes on; the caller has given up the others,
    although it may be long before their connections say so.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], _Running] = {}

    @contextmanager
    def running(self, request: prefill_service_pb2.PrefillRequest, end: Callable[[BatonError], None]) -> Iterator[None]:
        """Enter a stream for as long as the context lasts, and end that with a smaller number.

        Args:
            request: What the stream answers.
            end: Ends it; called from any thread.

        Raises:
            AttemptReusedError: If one with this or a greater number runs.
        """
        attempt, running = (request.request_id, request.attempt), _Running(request.stream_number, end)
        with self._lock:
            other = self._running.get(attempt)
            if other is not None and other.stream_number >= running.stream_number:
                raise AttemptReusedError(
                    f"stream {other.stream_number} of {request.request_id}/{request.attempt} is running already"
                )
            self._running[attempt] = running
        if other is not None:
            other.end(AttemptReusedError(f"stream {running.stream_number} of the attempt has taken over"))
        try:
            yield
        finally:
            with self._lock:
                if self._running.get(attempt) is running:
                    del self._running[attempt]
