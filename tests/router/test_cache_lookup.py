"""Asking the cache index."""

from __future__ import annotations

import asyncio

from baton.router.cache_lookup import CacheIndexClient, NoCacheLookup
from baton.rpc.channel import open_channel

UNREACHABLE = "127.0.0.1:1"


def test_an_absent_index_means_no_prefixes_and_is_counted() -> None:
    """Placement goes on with cold caches, within the lookup's deadline."""

    async def run() -> tuple[dict[str, int], int]:
        async with open_channel(UNREACHABLE) as channel:
            client = CacheIndexClient(channel, timeout_seconds=0.5)
            return await client.longest_prefixes(b"x" * 16), client.num_failures

    assert asyncio.run(asyncio.wait_for(run(), 20.0)) == ({}, 1)


def test_a_prompt_without_full_blocks_is_not_looked_up() -> None:
    """There is nothing to find, so the index is not asked."""

    async def run() -> tuple[dict[str, int], int]:
        async with open_channel(UNREACHABLE) as channel:
            client = CacheIndexClient(channel, timeout_seconds=0.5)
            return await client.longest_prefixes(b""), client.num_failures

    assert asyncio.run(asyncio.wait_for(run(), 20.0)) == ({}, 0)


def test_without_an_index_nobody_holds_anything() -> None:
    """The stand-in answers at once."""
    assert asyncio.run(NoCacheLookup().longest_prefixes(b"x" * 16)) == {}
