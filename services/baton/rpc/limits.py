"""How much a client may ask of a gRPC server before anything of Baton looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.rpc.channel import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLimits:
    """Bounds of a server's connections; the defaults are those among processes of one deployment."""

    request_bytes: int = MAX_MESSAGE_BYTES
    response_bytes: int = MAX_MESSAGE_BYTES
    num_streams: int = 4096
    """Calls of one connection at once; more wait at the client."""
    ping_milliseconds: int = 500
    """Least time between two pings of a client that is sent nothing meanwhile; one that comes earlier is a strike."""
    num_ping_strikes: int = 0
    """Strikes after which a connection ends; 0: it does not."""
    connection_seconds: float = 0.0
    """Age, a tenth more or less, at which a connection's client is told, by GOAWAY, to ask elsewhere; 0: never before
    the server stops, where calls that are on their way are lost."""
    connection_grace_seconds: float = 0.0
    """Time that what runs on such a connection has from then on; 0: as long as it takes."""
    has_gzip: bool = False
    """Whether messages may be compressed: answers for clients that take it, requests as far as `request_bytes` goes."""

    def options(self) -> Sequence[tuple[str, int]]:
        """Return them as arguments of a server of grpcio."""
        arguments = {
            "grpc.max_receive_message_length": self.request_bytes,
            "grpc.max_send_message_length": self.response_bytes,
            "grpc.max_concurrent_streams": self.num_streams,
            "grpc.http2.min_ping_interval_without_data_ms": self.ping_milliseconds,
            "grpc.http2.max_ping_strikes": self.num_ping_strikes,
            "grpc.keepalive_permit_without_calls": 1,  # else, of a connection without calls, a ping in two hours
        }
        if self.connection_seconds:
            arguments["grpc.max_connection_age_ms"] = round(self.connection_seconds * 1000)
            if self.connection_grace_seconds:
                arguments["grpc.max_connection_age_grace_ms"] = round(self.connection_grace_seconds * 1000)
        return tuple(arguments.items())


AMONG_OWN = PortLimits()
"""Of servers that processes of one deployment call."""
