"""Other protocols on the REST port: clients of gRPC, gRPC-Web and Connect are told so in their own words."""

from __future__ import annotations

import json
import struct

from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.grpc_sockets import frames
from baton.grpc_sockets.headers import RESPONSE_HEADERS, Code, Status, fixed_block, trailers_of

_WHERE = "gRPC over HTTP/2 is, on the gRPC port (--grpc-port, by default 8001), and here REST: GET /docs lists it"
_END_STREAM = 2
"""Flag of the envelope that ends a stream of Connect."""
_MOST_SKIPPED_BYTES = 1 << 15
"""Of one frame before the first call."""

HTTP2_START = frames.PREFACE[:14]
"""How a connection begins whose client speaks HTTP/2 without asking."""


class Http2Refusal:
    """Answers the first call on a connection of HTTP/2; of frames it reads the heads alone.

    To end the connection before would not do: clients of gRPC make another one, at once and for ever.
    """

    greeting = frames.settings_frame({})
    """What the client waits for."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._num_skipped_bytes = len(frames.PREFACE)

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return the answer to the call, after which the connection ends; empty: it has not come yet."""
        self._data += data
        while len(self._data) >= self._num_skipped_bytes + frames.FRAME_HEADER_BYTES:
            del self._data[: self._num_skipped_bytes]
            frame = frames.unpack_header(self._data[: frames.FRAME_HEADER_BYTES])
            if frame.frame_type == frames.FrameType.HEADERS:
                flags = frames.END_HEADERS | frames.END_STREAM
                block = fixed_block([*RESPONSE_HEADERS, *_status("HTTP/2").items()])
                answer = frames.pack_header(len(block), frames.FrameType.HEADERS, flags, frame.stream_id) + block
                return answer + frames.goaway_frame(frame.stream_id, frames.ErrorCode.NO_ERROR)
            self._num_skipped_bytes = frames.FRAME_HEADER_BYTES + frame.num_bytes
        if self._num_skipped_bytes > _MOST_SKIPPED_BYTES:
            return frames.goaway_frame(0, frames.ErrorCode.PROTOCOL_ERROR)
        return b""


def refuse_rpc(request: HttpRequest, response: HttpResponse) -> bool:
    """Refuse a call that is not REST; return whether it was one.

    Sources: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md, https://connectrpc.com/docs/protocol
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type.startswith("application/grpc"):
        status = _status("gRPC-Web" if "web" in media_type else "gRPC")
        response.send(200, b"", headers={"content-type": media_type, **status})
        return True
    error = {"code": "unimplemented", "message": _sentence("Connect")}
    if media_type.startswith("application/connect+"):
        body = json.dumps({"error": error}).encode()
        response.send(200, struct.pack(">BI", _END_STREAM, len(body)) + body, headers={"content-type": media_type})
        return True
    if request.path.startswith("/baton.v1.") or "connect-protocol-version" in request.headers:
        response.send(501, json.dumps(error).encode())
        return True
    return False


def _sentence(protocol: str) -> str:
    return f"{protocol} is not served on the REST port; {_WHERE}"


def _status(protocol: str) -> dict[str, str]:
    return dict(trailers_of(Status(Code.UNIMPLEMENTED, _sentence(protocol))))
