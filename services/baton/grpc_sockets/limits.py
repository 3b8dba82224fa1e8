"""Bounds of a connection: what a peer can make this side hold, and how long it is waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one connection; a peer that exceeds them is refused, never waited for."""

    frame_bytes: int = (1 << 20) + (4 << 10)
    """Largest HTTP/2 frame taken or made, 16,384 to 16,777,215. 1 MiB of payload goes as one, with what stands before
    it: those few bytes would be a frame of their own otherwise, which costs as much as a large one."""
    header_bytes: int = 32 << 10
    """Headers of one call, compressed as well as not."""
    message_bytes: int = 64 << 20
    num_streams: int = 64
    """Calls at once on one connection."""
    stream_window_bytes: int = 1 << 20
    """Bytes of one call that may be on their way to this side at first. It must cover rate times round trip: 1 MiB is
    10 Gb/s at 0.8 ms."""
    most_stream_window_bytes: int = 0
    """Bytes up to which that grows while they come fast (baton.grpc_sockets.flow_control); 0: not at all."""
    connection_window_bytes: int = (1 << 31) - 1
    """The same for all calls together, as large as HTTP/2 allows: each is bounded already, and what arrives is
    taken from the socket at once."""
    num_held_bytes: int = 64 << 20
    """Messages of one call that were received and not yet released; then its window stays shut."""
    num_control_frames_per_second: int = 2_000
    """PING, SETTINGS, PRIORITY and RST_STREAM frames taken, by servers also HEADERS, and small or late DATA; who sends
    more is cut off."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a peer is waited for, seconds."""

    connect_seconds: float = 2.0
    """For a connection and the peer's first settings."""
    idle_seconds: float = 0.25
    """Silence, without a single byte, after which a peer with open calls is asked for a sign of life. Threads beside an
    engine's give it: a long pass is no silence."""
    ping_seconds: float = 0.5
    """Time for that sign; then the connection is dead: a process that was stopped is given up within a second."""
    send_seconds: float = 10.0
    """Longest time in which a peer takes nothing from its socket; then the connection is dead."""
    request_seconds: float = 20.0
    """From the first byte of a request to its last; a caller that takes longer is cut off."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a server, over all connections."""

    num_connections: int = 1024
    """At once, from their acceptance on; more are closed at once."""
    num_address_connections: int = 512
    """The same of one address, which many nodes may have."""
    num_calls: int = 1024
    """Calls that arrive or are served, each in a thread; more are refused."""
    num_request_bytes: int = 256 << 20
    """Their requests, as far as they have come; what there is no room for is refused."""
