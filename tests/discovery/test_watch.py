"""Following EndpointSlices against a real HTTP API double with faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from baton.discovery.watch import EndpointWatch
from discovery.api_double import TIMEOUT_SECONDS, ApiDouble, eventually, running_double


class View:
    """What a watch has said."""

    def __init__(self) -> None:
        self.addresses: frozenset[str] | None = None
        self.num_changes = 0
        self._changed = asyncio.Event()

    def update(self, addresses: frozenset[str]) -> None:
        """Take a change."""
        assert addresses != self.addresses, "a change that changes nothing"
        self.addresses = addresses
        self.num_changes += 1
        self._changed.set()

    async def wait_for(self, wanted: Callable[[], frozenset[str]]) -> float:
        """Return the seconds until the view is what is wanted."""
        started = asyncio.get_running_loop().time()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.addresses != wanted():
                self._changed.clear()
                await self._changed.wait()
        return asyncio.get_running_loop().time() - started


class Rig:
    """A server, a watch on it, and what the watch says."""

    def __init__(self, double: ApiDouble, *, watch_seconds: float) -> None:
        self.double = double
        self.view = View()
        self.watch = EndpointWatch(double.api(), watch_seconds=watch_seconds)

    async def settle(self) -> float:
        """Return the seconds until the view is right."""
        return await self.view.wait_for(lambda: self.double.addresses)

    async def watched(self, num_watches: int = 1) -> None:
        """Return once so many watches have been begun and one runs."""
        await eventually(lambda: self.double.num_watches >= num_watches and self.double.num_open == 1)


@asynccontextmanager
async def _rig(*, watch_seconds: float = 60.0) -> AsyncIterator[Rig]:
    async with running_double() as double:
        rig = Rig(double, watch_seconds=watch_seconds)
        await double.change("a", ["10.0.0.1"])
        running = asyncio.create_task(rig.watch.run(rig.view.update))
        try:
            await rig.settle()
            await rig.watched()
            yield rig
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


def _run(test: Callable[[Rig], Awaitable[None]], *, watch_seconds: float = 60.0) -> None:
    async def run() -> None:
        async with _rig(watch_seconds=watch_seconds) as rig:
            await test(rig)

    asyncio.run(run())


def test_two_hundred_pods_come_and_go() -> None:
    """The view follows 400 changes over several slices, one list and one watch suffice."""

    async def test(rig: Rig) -> None:
        chance = random.Random(7)
        pods = [f"10.1.{number // 100}.{number % 100}" for number in range(200)]
        for _ in range(200):
            name = f"slice-{chance.randrange(4)}"
            await rig.double.change(name, chance.sample(pods, chance.randrange(100)))
            if chance.random() < 0.1:
                await rig.double.delete(name)
        await rig.settle()
        for number in range(4):
            await rig.double.change(f"slice-{number}", pods[number * 50 : number * 50 + 50])
        await rig.settle()

        assert len(rig.view.addresses or ()) == 201
        assert (rig.double.num_lists, rig.double.num_watches) == (1, 1)

    _run(test)


@pytest.mark.parametrize("while_away", [False, True])
def test_a_watch_that_is_cut_goes_on_where_it_was(while_away: bool) -> None:
    """Events from between the two watches are not lost, and nothing is listed again."""

    async def test(rig: Rig) -> None:
        rig.double.cut()
        if while_away:
            await rig.double.change("b", ["10.0.0.2"])
        await rig.watched(2)
        await rig.double.change("c", ["10.0.0.3"])
        await rig.settle()

        assert rig.double.num_lists == 1

    _run(test)


def test_a_version_that_is_forgotten_is_listed_anew() -> None:
    """410 Gone leads to a list; what went in the meantime is gone from the view."""

    async def test(rig: Rig) -> None:
        rig.double.cut()
        await rig.double.change("b", ["10.0.0.2"])
        await rig.double.delete("a")
        rig.double.forget()
        await rig.settle()

        assert rig.view.addresses == {"10.0.0.2:8010"}
        assert rig.double.num_lists == 2

    _run(test)


def test_a_410_as_status_is_the_same() -> None:
    """Servers answer so where the version is known to be too old before the stream begins."""

    async def test(rig: Rig) -> None:
        rig.double.failing_status = 410
        rig.double.cut()
        await rig.double.change("b", ["10.0.0.2"])
        await eventually(lambda: rig.double.num_failed > 0)
        rig.double.failing_status = 0
        await rig.settle()

        assert rig.double.num_lists == 2

    _run(test)


def test_a_bookmark_moves_the_version_on() -> None:
    """After a bookmark, a forgotten history before it needs no list."""

    async def test(rig: Rig) -> None:
        await rig.double.bookmark()
        await eventually(lambda: rig.watch.state.resource_version == str(rig.double.version))
        rig.double.forget()
        rig.double.cut()
        await rig.watched(2)
        await rig.double.change("b", ["10.0.0.2"])
        await rig.settle()

        assert rig.double.num_lists == 1

    _run(test)


def test_events_that_come_twice_change_nothing_twice() -> None:
    """The view is told of a change once."""

    async def test(rig: Rig) -> None:
        rig.double.is_sending_twice = True
        for number in range(5):
            await rig.double.change("b", [f"10.0.1.{number}"])
            await rig.settle()

        assert rig.view.num_changes == 6

    _run(test)


def test_a_server_that_sends_a_few_bytes_at_a_time_is_understood() -> None:
    """Lines are put together from pieces, lists too."""

    async def test(rig: Rig) -> None:
        rig.double.bytes_at_once = 7
        await rig.double.change("b", ["10.0.0.2"], not_ready=["10.0.0.9"])
        await rig.settle()

        assert rig.view.addresses == {"10.0.0.1:8010", "10.0.0.2:8010"}

    _run(test)


@pytest.mark.parametrize(
    "content", [b"what is this\n", b'{"type": "NEWS", "object": {}}\n', b'{"type": "ADDED"}\n', b"[]\n"]
)
def test_what_is_no_event_ends_the_watch_and_not_the_view(content: bytes) -> None:
    """The watch is made again from the last version."""

    async def test(rig: Rig) -> None:
        await rig.double.send_raw(content)
        await rig.watched(2)
        await rig.double.change("b", ["10.0.0.2"])
        await rig.settle()

    _run(test)


def test_while_the_server_fails_the_last_view_stays() -> None:
    """Pods outlive an API server's absence; when it is back, the view is right again."""

    async def test(rig: Rig) -> None:
        rig.double.failing_status = 500
        rig.double.cut()
        await rig.double.change("a", ["10.0.0.7"])
        await eventually(lambda: rig.double.num_failed > 2)
        during = rig.view.addresses
        rig.double.failing_status = 0
        await rig.settle()

        assert during == {"10.0.0.1:8010"}
        assert rig.view.addresses == {"10.0.0.7:8010"}

    _run(test)


def test_watches_end_and_begin_again_by_themselves() -> None:
    """A watch has a length; the next goes on where it was, without a list."""

    async def test(rig: Rig) -> None:
        await rig.watched(2)
        await rig.double.change("b", ["10.0.0.2"])
        await rig.settle()

        assert rig.double.num_lists == 1

    _run(test, watch_seconds=1.0)


def test_ending_a_watch_ends_its_request() -> None:
    """Cancelling leaves neither a connection nor a thread behind that reads for ever."""

    async def run() -> None:
        async with running_double() as double:
            watch = EndpointWatch(double.api())
            for number in range(3):
                running = asyncio.create_task(watch.run(lambda _: None))
                await eventually(lambda seen=number: double.num_watches > seen and double.num_open == 1)
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await eventually(lambda: double.num_open == 0)

    asyncio.run(run())
