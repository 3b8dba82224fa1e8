"""How often a server is asked that does not answer well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from baton.discovery.endpoints import Event, ExpiredError, Listing, Slice, WatchError
from baton.discovery.watch import EndpointWatch


class Server:
    """A server whose watches end at once, in one way or another."""

    def __init__(self, error: Exception | None, *, is_changing: bool) -> None:
        self.pauses_seconds: list[float] = []
        self._error = error
        self._is_changing = is_changing
        self._version = 0

    async def sleep(self, seconds: float) -> None:
        """Note a pause, and end the test after twelve."""
        self.pauses_seconds.append(seconds)
        if len(self.pauses_seconds) == 12:
            raise asyncio.CancelledError

    async def list_slices(self) -> Listing:
        """Return one slice, which is another each time if things change."""
        self._version += 1
        pod = f"10.0.0.{self._version}:1" if self._is_changing else "10.0.0.1:1"
        return Listing([Slice("a", frozenset({pod}))], str(self._version))

    async def watch_slices(self, resource_version: str, seconds: float) -> AsyncGenerator[Event, None]:
        """End as the test says."""
        for event in ():
            yield event
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "is_changing", "longest_seconds"),
    [
        (ExpiredError("too old"), True, 0.1),
        (ExpiredError("too old"), False, 5.0),
        (WatchError("cut"), False, 5.0),
        (None, False, 5.0),
    ],
)
def test_pauses_grow_unless_there_is_news(error: Exception | None, is_changing: bool, longest_seconds: float) -> None:
    """A busy cluster that forgets fast is listed without delay; a server that answers nothing new is left alone."""
    server = Server(error, is_changing=is_changing)
    watch = EndpointWatch(server, sleep=server.sleep)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch.run(lambda _: None))

    assert server.pauses_seconds[0] <= 0.1
    assert longest_seconds / 2 <= server.pauses_seconds[-1] <= longest_seconds
