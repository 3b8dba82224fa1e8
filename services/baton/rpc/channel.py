"""Client channels of gRPC's library: dead peers are noticed within seconds, trace context travels with every call."""

from __future__ import annotations

import grpc

from baton.security.tls import identity_towards

KEEPALIVE_MILLISECONDS = 2_000
"""Pause between pings while calls are open, whatever comes meanwhile."""
PING_TIMEOUT_MILLISECONDS = 1_500
"""Time for the answer, which waits behind KV on a slow link. grpcio needs both options set to notice a stopped peer."""
CONNECT_MILLISECONDS = 2_000
"""Time for a connection, up to the server's first settings; a call that waits for it fails then. grpcio gives a first
attempt the longer of this and the backoff, and calls this the least backoff; a refused one is tried again after the
backoff."""
MAX_MESSAGE_BYTES = 64 << 20
"""Largest message sent or taken."""

_OPTIONS = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MILLISECONDS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MILLISECONDS),
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
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", KV_WINDOW_BYTES),
)


def open_channel(address: str, *, is_dedicated: bool = False, process: str = "") -> grpc.aio.Channel:
    """Return a channel to host:port, with TLS if the context has an identity; the connection is made by the first call.

    `is_dedicated`: it has a connection of its own, as KV streams do, so that tokens never wait behind them; `process`:
    name that the other side's certificate has, beside that of servers (`Authority.sign`).
    """
    options: tuple[tuple[str, object], ...] = _OPTIONS + (_DEDICATED_OPTIONS if is_dedicated else ())
    identity = identity_towards(address)
    if identity is None:
        return grpc.aio.insecure_channel(address, options=options)
    server_name = f"{process}.{identity.server_name}" if process else identity.server_name
    options += (("grpc.ssl_target_name_override", server_name),)
    return grpc.aio.secure_channel(address, identity.channel_credentials(), options=options)
