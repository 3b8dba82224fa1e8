"""gRPC messages in the DATA frames of a stream: cut out on one side, framed on the other."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence

from baton.h2.reader import FrameReader
from baton.h2.sockets import Buffer
from baton.h2.status import CallError, Code

PREFIX_BYTES = 5


def message_prefix(num_bytes: int) -> bytes:
    """Return what stands before an uncompressed message."""
    return struct.pack(">BI", 0, num_bytes)


class MessageAssembler:
    """Receives the messages of one stream into memory that `allocate` gives, wherever frames cut them.

    Args:
        allocate: Returns writable memory of the given size.
        deliver: Takes each message when it is whole.
        max_bytes: Largest message.
    """

    def __init__(
        self, allocate: Callable[[int], memoryview], deliver: Callable[[memoryview], None], max_bytes: int
    ) -> None:
        self._allocate = allocate
        self._deliver = deliver
        self._max_bytes = max_bytes
        self._prefix = memoryview(bytearray(PREFIX_BYTES))
        self._message: memoryview | None = None
        self._missing = self._prefix

    @property
    def is_between_messages(self) -> bool:
        """Return whether no message has begun."""
        return self._message is None and len(self._missing) == PREFIX_BYTES

    def fill(self, reader: FrameReader, num_bytes: int) -> None:
        """Receive the next bytes of the stream.

        Raises:
            CallError: If a message is compressed or too large; the bytes that remain are skipped.
            OSError: If the connection breaks.
        """
        while num_bytes:
            target = self._missing[:num_bytes]
            reader.read_into(target)
            num_bytes -= len(target)
            self._missing = self._missing[len(target) :]
            if not self._missing:
                try:
                    self._part_is_complete()
                except BaseException:
                    reader.skip(num_bytes)
                    raise

    def _part_is_complete(self) -> None:
        if self._message is None:
            is_compressed, num_bytes = struct.unpack(">BI", self._prefix)
            if is_compressed:
                raise CallError(Code.UNIMPLEMENTED, "compressed messages are not supported")
            if num_bytes > self._max_bytes:
                raise CallError(
                    Code.RESOURCE_EXHAUSTED, f"a message of {num_bytes} bytes; {self._max_bytes} are the most"
                )
            self._message = self._missing = self._allocate(num_bytes)
            if num_bytes:
                return
        message, self._message, self._missing = self._message, None, self._prefix
        self._deliver(message)


class MessageParts:
    """A message that is sent piece by piece, without being joined.

    Args:
        parts: Its bytes, one buffer after the other.
    """

    def __init__(self, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        self.num_bytes = PREFIX_BYTES + sum(map(len, views))
        """Bytes that have not been cut off yet, the prefix included."""
        self._views = deque([memoryview(message_prefix(self.num_bytes - PREFIX_BYTES)), *views])

    def cut(self, num_bytes: int) -> list[memoryview]:
        """Take the next bytes, at most `self.num_bytes`."""
        self.num_bytes -= num_bytes
        pieces: list[memoryview] = []
        while num_bytes:
            first = self._views.popleft()
            if len(first) > num_bytes:
                self._views.appendleft(first[num_bytes:])
                first = first[:num_bytes]
            pieces.append(first)
            num_bytes -= len(first)
        return pieces
