"""Keeps a stream to a service alive: makes it again whenever it breaks, with growing pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc

from baton.errors import SupersededError
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
_MAX_RETRY_SECONDS = 2.0


async def stay_connected(service: str, address: str, use: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    """Call `use` with a channel to `address`, again and again, until cancelled.

    The first failure after a connection is logged as a warning, further ones are not: a service that is away for an
    hour should not fill the log.

    Args:
        service: Name of the service, for the log.
        address: host:port.
        use: Runs one stream to its end.

    Raises:
        SupersededError: If a newer process has taken this node's name.
    """
    pause, is_lost = _RETRY_SECONDS, False
    while True:
        started = asyncio.get_running_loop().time()
        try:
            async with open_channel(address) as channel:
                await use(channel)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if isinstance(error, SupersededError):
                raise error from rpc_error
            level = logging.DEBUG if is_lost else logging.WARNING
            log.log(level, "connection_lost service=%s address=%s cause=%s", service, address, error.message)
        has_lasted = asyncio.get_running_loop().time() - started > _MAX_RETRY_SECONDS
        is_lost = not has_lasted
        pause = _RETRY_SECONDS if has_lasted else min(2 * pause, _MAX_RETRY_SECONDS)
        await asyncio.sleep(pause)
