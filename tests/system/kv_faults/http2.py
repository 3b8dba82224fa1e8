"""As much of HTTP/2 and gRPC as a proxy needs to know one message of a stream from the next."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA = 0
END_STREAM = 1
_HEADER_BYTES = 9
_PREFIX_BYTES = 5
_MAX_DATA_BYTES = 16384


@dataclass(frozen=True)
class Frame:
    """One HTTP/2 frame; DATA frames are taken to have no padding, as those of both implementations."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes

    def encode(self) -> bytes:
        """Return its bytes."""
        head = struct.pack(">I", len(self.payload))[1:] + bytes((self.kind, self.flags))
        return head + struct.pack(">I", self.stream_id) + self.payload

    def with_payload(self, payload: bytes) -> Frame:
        """Return it with another payload."""
        return replace(self, payload=payload)


class FrameReader:
    """Takes bytes as they come, gives whole frames; the client's preface comes first where there is one."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.preface = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete with these bytes."""
        self._data += data
        if not self.preface and self._data.startswith(PREFACE):
            self.preface = PREFACE
            del self._data[: len(PREFACE)]
        elif PREFACE.startswith(bytes(self._data[: len(PREFACE)])) and not self.preface:
            return []
        frames = []
        while len(self._data) >= _HEADER_BYTES:
            num_bytes = int.from_bytes(self._data[:3], "big")
            if len(self._data) < _HEADER_BYTES + num_bytes:
                break
            stream_id = int.from_bytes(self._data[5:9], "big") & 0x7FFFFFFF
            payload = bytes(self._data[_HEADER_BYTES : _HEADER_BYTES + num_bytes])
            frames.append(Frame(self._data[3], self._data[4], stream_id, payload))
            del self._data[: _HEADER_BYTES + num_bytes]
        return frames


class MessageReader:
    """Takes the DATA of one stream, gives whole gRPC messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages, without their prefix, that are complete with these bytes."""
        self._data += data
        messages = []
        while len(self._data) >= _PREFIX_BYTES:
            num_bytes = int.from_bytes(self._data[1:_PREFIX_BYTES], "big")
            if len(self._data) < _PREFIX_BYTES + num_bytes:
                break
            messages.append(bytes(self._data[_PREFIX_BYTES : _PREFIX_BYTES + num_bytes]))
            del self._data[: _PREFIX_BYTES + num_bytes]
        return messages


def message_bytes(stream_id: int, message: bytes) -> bytes:
    """Return a gRPC message as DATA frames."""
    data = b"\0" + struct.pack(">I", len(message)) + message
    parts = (data[start : start + _MAX_DATA_BYTES] for start in range(0, len(data), _MAX_DATA_BYTES))
    return b"".join(Frame(DATA, 0, stream_id, part).encode() for part in parts)
