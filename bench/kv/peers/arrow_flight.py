"""Arrow Flight (pyarrow): frames as record batches of one uint8 column, from and into Arrow's own buffers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from bench.kv.peers.endpoint import HOST, Slots, run, source_memory, source_of

_SCHEMA = pa.schema([("frame", pa.uint8())])


class FrameServer(flight.FlightServerBase):  # type: ignore[misc]
    """Streams frames; a ticket says how many of what size."""

    def __init__(self) -> None:
        super().__init__(f"grpc://{HOST}:0")
        self._source = source_memory()

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002
        """Return the stream of a ticket."""
        num_frames, frame_bytes = map(int, ticket.ticket.split())
        return flight.GeneratorStream(_SCHEMA, self._batches(num_frames, frame_bytes))

    def _batches(self, num_frames: int, frame_bytes: int) -> Iterator[Any]:
        for frame in range(num_frames):
            buffer = pa.py_buffer(source_of(self._source, frame, frame_bytes))
            array = pa.Array.from_buffers(pa.uint8(), frame_bytes, [None, buffer])
            yield pa.record_batch([array], schema=_SCHEMA)


def send() -> int:
    """Serve frames."""
    server = FrameServer()
    threading.Thread(target=server.serve, daemon=True).start()
    return int(server.port)


def receive(address: str, num_frames: int, slots: Slots) -> None:
    """Take frames, and keep those of one round where they landed; they are compared there."""
    client = flight.connect(f"grpc://{address}")
    reader = client.do_get(flight.Ticket(f"{num_frames} {slots.frame_bytes}".encode()))
    kept: list[Any] = [None] * slots.num_slots
    for frame in range(num_frames):
        kept[frame % slots.num_slots] = reader.read_chunk().data.column(0)
    slots.view = lambda frame: memoryview(np.asarray(kept[frame % slots.num_slots]).data)  # type: ignore[method-assign]
    client.close()


if __name__ == "__main__":
    run(send, receive)
