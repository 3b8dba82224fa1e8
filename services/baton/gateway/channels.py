"""One channel per decode node, shared by all generations that run there."""

from __future__ import annotations

from collections import OrderedDict

import grpc

from baton.rpc.channel import open_channel

_MAX_CHANNELS = 256


class DecodeChannels:
    """Keeps a channel per address. Invariant: at most 256 are kept; the one unused for longest is dropped first."""

    def __init__(self) -> None:
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()

    def get(self, address: str) -> grpc.aio.Channel:
        """Return the channel to host:port. Calls on a dropped one fail and are tried again."""
        channel = self._channels.pop(address, None) or open_channel(address)
        self._channels[address] = channel
        if len(self._channels) > _MAX_CHANNELS:
            self._channels.popitem(last=False)
        return channel

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, OrderedDict()
        for channel in channels.values():
            await channel.close()
