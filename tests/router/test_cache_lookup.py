"""Asking the cache index."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from baton.router import placer
from baton.router.placer import CacheIndexClient
from baton.rpc.channel import open_channel
from baton.telemetry.metrics import Metrics
from baton.telemetry.names import FAILED_LOOKUPS, MetricName

UNREACHABLE = "127.0.0.1:1"


class Counts(Metrics):
    """Keeps the reasons of failed lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []

    def add(self, metric: MetricName, value: float = 1, attributes: Mapping[str, str] | None = None) -> None:
        """Keep a reason."""
        assert (metric, value) == (FAILED_LOOKUPS, 1)
        self.reasons += (attributes or {}).values()


@pytest.mark.parametrize(("block_hashes", "reasons"), [(b"x" * 16, ["UNAVAILABLE"] * 2), (b"", [])])
def test_an_absent_index_means_no_prefixes_and_is_counted(
    caplog: pytest.LogCaptureFixture, block_hashes: bytes, reasons: list[str]
) -> None:
    """Placement goes on with cold caches; where there is nothing to find, the index is not asked."""
    counts = Counts()

    async def run() -> None:
        async with open_channel(UNREACHABLE) as channel:
            client = CacheIndexClient(channel, timeout_seconds=5.0, metrics=counts)
            for _ in range(2):
                assert await client.held_prefixes(block_hashes) == {}

    asyncio.run(asyncio.wait_for(run(), 20.0))

    assert counts.reasons == reasons
    told = [record for record in caplog.records if record.name == placer.__name__]
    assert len(told) == min(1, len(reasons))
