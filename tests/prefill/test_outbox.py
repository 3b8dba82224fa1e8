"""What waits to be sent is dropped with its stream: the budget does not count it any more."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from baton.engine.events import Failed
from baton.errors import BatonError
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1.prefill_service_pb2 import PrefillRequest, PrefillResponse
from baton.kv.stream import KvFrame
from baton.kv_transport.kv_services import ReceivedRequest
from baton.prefill.outbox import LoopOutbox, Outbox, ThreadOutbox
from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import serve_fast

pytestmark = pytest.mark.usefixtures("no_collector")  # what is not freed at once must show

FAILED = Failed(BatonError("taken over"))
Put = Callable[[KvFrame], None]


def put_frames(put: Put, num_frames: int = 3) -> Callable[[], int]:
    """Put frames; return what counts those whose memory somebody holds."""
    memories: list[weakref.ref[Any]] = []
    for index in range(num_frames):
        memory = np.zeros(1000, np.uint8)
        memories.append(weakref.ref(memory))
        put(KvFrame(0, 1, index, 1, memory.data, b""))
        del memory
    return lambda: sum(memory() is not None for memory in memories)


def loop_outbox() -> LoopOutbox:
    """Return one that the running loop empties."""
    return LoopOutbox(asyncio.get_running_loop())


async def next_of(outbox: LoopOutbox | ThreadOutbox) -> object:
    """Return what is sent next."""
    return await outbox.get() if isinstance(outbox, LoopOutbox) else outbox.get(1.0)


@pytest.mark.parametrize("make", [loop_outbox, ThreadOutbox])
def test_a_failed_stream_holds_no_frames(make: Callable[[], LoopOutbox | ThreadOutbox]) -> None:
    """Neither those that wait nor those that still come: its sender may hang in a write for long."""

    async def test() -> None:
        outbox = make()
        num_held = put_frames(outbox.put)
        assert num_held() == 3
        outbox.put(FAILED)
        num_held_of_late = put_frames(outbox.put)

        assert (num_held(), num_held_of_late()) == (0, 0)
        assert await next_of(outbox) is FAILED

    asyncio.run(test())


@pytest.mark.parametrize("make", [loop_outbox, ThreadOutbox])
def test_a_closed_outbox_holds_nothing(make: Callable[[], Outbox]) -> None:
    """Whatever still comes."""

    async def test() -> None:
        outbox = make()
        num_held = put_frames(outbox.put)
        outbox.close()
        num_held_of_late = put_frames(outbox.put)

        assert (num_held(), num_held_of_late()) == (0, 0)

    asyncio.run(test())


def test_a_stream_that_ends_by_an_error_holds_no_frames() -> None:
    """However long somebody keeps the error, which knows where it was raised."""
    counts: list[Callable[[], int]] = []

    class Ending:
        def compile_blocking(self, _: object) -> None:
            """There is no form."""

        @contextmanager
        def begin(self, _: object, __: object, put: Put) -> Iterator[Any]:
            """Compute all at once."""
            counts.append(put_frames(put))
            yield SimpleNamespace(layout=PrefillResponse, close=lambda: None, is_complete=False)

    def send(*_: object) -> None:
        raise StreamEndedError("the caller has gone")

    call = cast(ServerCall, SimpleNamespace(watch=lambda _: None, send=send))
    with pytest.raises(StreamEndedError) as kept:
        serve_fast(cast(Prefiller, Ending()), ReceivedRequest(PrefillRequest(), 0), call)

    assert counts[0]() == 0
    assert kept.tb is not None
