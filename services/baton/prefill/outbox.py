"""What waits to be sent of KV streams: frames packed, kept in order, and bounded over all streams of a node."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from baton.engine.events import EngineEvent, Failed, TokenReady
from baton.errors import BatonError
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.kv.kv_format import KvLayout, WireCodec
from baton.kv.stream import KvFrame, pack_frame

log = logging.getLogger(__name__)

Item = KvFrame | EngineEvent


class Outbox(ABC):
    """A KV stream's queue: any thread fills it, the sender empties it; subclasses say how the sender waits.

    The first token overtakes the frames that still wait: the client need not wait for the transfer. Everything else
    keeps its order. It holds at most the KV of its prompt; all outboxes of a node are bounded by `OutboxBudget`, which
    counts no frame of a stream that has failed or ended: none is held then.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._has_failed = False

    def put(self, item: Item) -> None:
        """Take a frame or an event; a failure drops what waits, and what still comes."""
        with self._lock:
            if self._is_closed or self._has_failed:
                return
            if isinstance(item, Failed):
                self._has_failed = True
                self._items.clear()
            if isinstance(item, TokenReady):
                self._items.appendleft(item)
            else:
                self._items.append(item)
            self._wake()

    def close(self) -> None:
        """Wake the sender, drop what waits, and what still comes: nobody wants it."""
        with self._lock:
            self._is_closed = True
            self._items.clear()
            self._wake()

    @abstractmethod
    def _wake(self) -> None:
        """Have the sender look again; called with the lock held."""


class ThreadOutbox(Outbox):
    """Emptied by a thread."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition(self._lock)

    def get(self, timeout_seconds: float | None) -> Item:
        """Return the next item, waiting for it; raise StreamEndedError if closed, TimeoutError if it is late."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._items or self._is_closed, timeout_seconds):
                raise TimeoutError("the deadline has passed")
            if self._is_closed:
                raise StreamEndedError("the caller has gone")
            return self._items.popleft()

    def _wake(self) -> None:
        self._changed.notify()


class LoopOutbox(Outbox):
    """Emptied by a task of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._changed = asyncio.Event()

    async def get(self) -> Item:
        """Return the next item, waiting for it; for ever, if the outbox was closed."""
        while True:
            self._changed.clear()
            with self._lock:
                if self._items:
                    return self._items.popleft()
            await self._changed.wait()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)


class OutboxBudget:
    """Memory for frames that wait. Safe from any thread.

    Invariant: the prompts that have begun have not more than `max_bytes` left to send, together; or one of them alone
    has, because it could never begin otherwise. The engine never waits for a network: it begins with a prompt only when
    all of its KV has room. `on_room` is called, from any thread, when a prompt that was put off may begin.
    """

    def __init__(self, max_bytes: int, on_room: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._has_waiting = False

    @property
    def num_bytes(self) -> int:
        """Return the bytes that prompts which have begun have left to send."""
        return self._num_bytes

    def share(self, layout: KvLayout, num_bytes: int) -> OutboxShare:
        """Return the share of a stream that owes this much; nothing is taken yet."""
        return OutboxShare(self, layout, num_bytes)

    def take(self, num_bytes: int) -> bool:
        """Take bytes, if there is room."""
        with self._lock:
            if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
                self._has_waiting = True
                return False
            self._num_bytes += num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._num_bytes -= num_bytes
            is_awaited = self._has_waiting and num_bytes > 0
            self._has_waiting = self._has_waiting and not is_awaited
        if is_awaited:
            self._on_room()


class OutboxShare:
    """A stream's part of the budget, held from the begin of its prompt until the stream ends."""

    def __init__(self, budget: OutboxBudget, layout: KvLayout, num_bytes: int) -> None:
        self._budget = budget
        self._layout = layout
        self._num_bytes = num_bytes
        self._lock = threading.Lock()
        self._num_taken_bytes = 0
        self._has_begun = False
        self._is_closed = False

    def may_begin(self) -> bool:
        """Take the share, if there is room for it; from the engine's thread."""
        with self._lock:
            if not self._has_begun and not self._is_closed and self._budget.take(self._num_bytes):
                self._has_begun, self._num_taken_bytes = True, self._num_bytes
            return self._has_begun and not self._is_closed

    def sent(self, frame: KvFrame) -> None:
        """Give back what a frame took, which waits no more."""
        specs = self._layout.layers[frame.layer_begin : frame.layer_begin + frame.num_layers]
        num_elements = frame.num_tokens * sum(spec.num_token_elements for spec in specs)
        self._give_back(num_elements * self._layout.dtype.num_bytes + sum(spec.state_bytes for spec in specs))

    def close(self) -> None:
        """Give back the rest: the stream has ended."""
        with self._lock:
            self._is_closed = True
        self._give_back(self._num_bytes)

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            num_bytes = min(num_bytes, self._num_taken_bytes)
            self._num_taken_bytes -= num_bytes
        self._budget.give_back(num_bytes)


class FramePacker:
    """Packs frames before a stream's outbox; frames in the cache's own number format pass through.

    Invariant: frames and the end of the stream leave in the order in which they came; the first token, and a failure,
    do not wait for frames that are being packed. `lane` is one thread, which all streams of a node share: so packing
    takes a core at most from the engine. `put` takes frames and events, from any thread.
    """

    def __init__(self, codec: WireCodec, layout: KvLayout, lane: Executor, put: Callable[[Item], None]) -> None:
        self._codec = codec
        self._layout = layout
        self._lane = lane
        self._put = put
        self._is_closed = False

    def put_frame(self, frame: KvFrame) -> None:
        """Take a frame in the cache's format. From the engine's thread."""
        if self._layout.is_wire_lossless:
            self._put(frame)
        else:
            self._lane.submit(self._pack, frame)

    def put_event(self, event: EngineEvent) -> None:
        """Take an event that comes after the frames so far."""
        if isinstance(event, TokenReady | Failed):
            self._put(event)
        else:
            self._lane.submit(self._put, event)

    def close(self) -> None:
        """Drop the frames that wait: nobody wants them."""
        self._is_closed = True

    def _pack(self, frame: KvFrame) -> None:
        if self._is_closed:
            return
        try:
            self._put(pack_frame(self._codec, self._layout, frame))
        except Exception as error:  # the edge of the lane: other streams use it
            log.exception("packing_failed wire=%s", self._layout.wire_format)
            self._put(Failed(BatonError(f"K and V could not be packed: {type(error).__name__}: {error}")))
