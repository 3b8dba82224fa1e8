"""Frames whose payload is in memory that receiver and sender share (kv.proto, SharedMemoryOffer): both ends of it."""

from __future__ import annotations

import logging
from dataclasses import replace

from baton.errors import StreamBrokenError
from baton.kv.stream import KvFrame
from baton.rpc.frame_codec import EncodedFrame, ReceivedFrame, encode_frame, encode_shared_frame
from baton.shm.borrower import Borrowed, borrow
from baton.shm.lender import Loan
from baton.v1 import prefill_service_pb2

log = logging.getLogger(__name__)


class SharedOutlet:
    """The sender's end, for one stream. `encode` is for one thread at a time; `close` for any.

    Args:
        borrowed: The receiver's memory.
    """

    def __init__(self, borrowed: Borrowed) -> None:
        self._borrowed = borrowed

    def encode(
        self, frame: KvFrame, sequence_number: int, crc: int, header_crc: int | None, timeout_seconds: float | None
    ) -> EncodedFrame:
        """Write a frame's payload into the memory and return its message; where it has no room, all is in the message.

        Raises:
            TimeoutError: If the receiver makes no room in time.
        """
        parts = (frame.key_scales, frame.value_scales, frame.keys, frame.values)
        offset = self._borrowed.place(parts, timeout_seconds)
        if offset is None:
            return encode_frame(frame, sequence_number, crc, header_crc)
        return encode_shared_frame(frame, sequence_number, crc, header_crc, offset)

    def close(self) -> None:
        """End it; whoever waits in `encode` wakes."""
        self._borrowed.close()


def open_outlet(request: prefill_service_pb2.PrefillRequest) -> SharedOutlet | None:
    """Take the memory that a request offers; None: it offers none, or the caller is on another host. May wait."""
    if not request.HasField("shared_memory"):
        return None
    offer = request.shared_memory
    try:
        return SharedOutlet(borrow(offer.address, offer.token))
    except (OSError, ValueError) as error:
        log.debug("shared_memory_unused request=%s cause=%s", request.request_id, error)
        return None


def located(received: ReceivedFrame, loan: Loan | None) -> ReceivedFrame:
    """Return a frame with its payload, wherever that is.

    Raises:
        StreamBrokenError: If it is where the sender may not have put it.
    """
    shared = received.shared
    if shared is None:
        return received
    if loan is None:
        raise StreamBrokenError("a frame refers to shared memory, and none was offered")
    if received.frame.num_bytes:
        raise StreamBrokenError("a frame has a payload, and refers to another one in shared memory")
    counts = (
        shared.key_scales_byte_count,
        shared.value_scales_byte_count,
        shared.keys_byte_count,
        shared.values_byte_count,
    )
    if min(counts) < 0:
        raise StreamBrokenError("a frame refers to a negative number of bytes in shared memory")
    try:
        view = loan.view(shared.offset, sum(counts))
    except ValueError as error:
        raise StreamBrokenError(f"a frame refers to shared memory that is not its own: {error}") from error
    parts = []
    for count in counts:
        parts.append(view[:count])
        view = view[count:]
    key_scales, value_scales, keys, values = parts
    payload = replace(received.frame, key_scales=key_scales, value_scales=value_scales, keys=keys, values=values)
    return replace(received, frame=payload, shared=None)
