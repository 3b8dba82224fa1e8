"""Client channels: dead peers are noticed, those that a request waits for within a second."""

from __future__ import annotations

import grpc

from baton.security.tls import current_identity

KEEPALIVE_MILLISECONDS = 250
"""Silence after which a peer is pinged that requests wait for. Threads beside the engine's answer: a long pass is no
silence."""
PING_TIMEOUT_MILLISECONDS = 500
"""Time for the answer: a stopped process is given up within a second (docs/failures.md)."""
_BACKGROUND_KEEPALIVE_MILLISECONDS = 2_000
_BACKGROUND_PING_TIMEOUT_MILLISECONDS = 1_500
"""The same where no request waits, and a router may have a thousand such connections."""
CONNECT_MILLISECONDS = 2_000
"""Time for a connection, up to the server's first settings; a call that waits for it fails then. grpcio gives a first
attempt the longer of this and the backoff, and calls this the least backoff; a refused one is tried again after the
backoff."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message sent or taken."""


def keepalive_options(silence_milliseconds: int, ping_timeout_milliseconds: int) -> tuple[tuple[str, int], ...]:
    """Return the arguments of grpcio that have a peer pinged; it needs both time-outs to notice a stopped one."""
    return (
        ("grpc.keepalive_time_ms", silence_milliseconds),
        ("grpc.keepalive_timeout_ms", ping_timeout_milliseconds),
        ("grpc.http2.ping_timeout_ms", ping_timeout_milliseconds),
    )


_OPTIONS = (
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_MILLISECONDS),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


KV_WINDOW_BYTES = 1 << 20
"""Bytes of a KV stream that may be on their way at once: what the first token, which overtakes frames that wait at the
sender, still has to wait for. It must cover rate times round trip: 1 MiB is 10 Gb/s at 0.8 ms."""

_DEDICATED_OPTIONS = (
    *keepalive_options(KEEPALIVE_MILLISECONDS, PING_TIMEOUT_MILLISECONDS),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", KV_WINDOW_BYTES),
)
_BACKGROUND_OPTIONS = keepalive_options(_BACKGROUND_KEEPALIVE_MILLISECONDS, _BACKGROUND_PING_TIMEOUT_MILLISECONDS)


def open_channel(address: str, *, is_dedicated: bool = False) -> grpc.aio.Channel:
    """Return a channel to host:port, with TLS if the context has an identity; the connection is made by the first call.

    Args:
        address: host:port.
        is_dedicated: Whether to use a connection of its own. KV streams do, so that tokens never wait behind them.
    """
    options: tuple[tuple[str, object], ...] = _OPTIONS + (_DEDICATED_OPTIONS if is_dedicated else _BACKGROUND_OPTIONS)
    identity = current_identity()
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    options += (("grpc.ssl_target_name_override", identity.server_name),)
    credentials = identity.channel_credentials()
    return grpc.aio.secure_channel(address, credentials, options=options)
