"""Packs frames into the wire's number format, in a thread beside the engine's and the network's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor

from baton.engine.events import EngineEvent, Failed, TokenReady
from baton.errors import BatonError
from baton.kv.layout import KvLayout
from baton.kv.packing import pack_frame
from baton.kv.stream import KvFrame
from baton.kv.wire import WireCodec
from baton.prefill.outbox import Item

log = logging.getLogger(__name__)


class FramePacker:
    """Stands before one stream's outbox. What is lossless passes through.

    Invariant: frames and the end of the stream leave in the order in which they came; the first token, and a failure,
    do not wait for frames that are being packed.

    Args:
        codec: Does the arithmetic.
        layout: The cache, and in what frames travel.
        lane: One thread, which all streams of a node share: so packing takes a core at most from the engine.
        put: Takes frames and events, from any thread.
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
