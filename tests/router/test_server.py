"""The router and the cache index as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from baton.config.container_limits import Memory
from baton.errors import ConfigurationError
from baton.router.server import PLACEMENT_BYTES, placements_within

TIMEOUT_SECONDS = 40.0


@pytest.mark.parametrize(
    ("package", "settings_class"),
    [("baton.router", "RouterSettings"), ("baton.cache_index", "CacheIndexSettings")],
)
def test_a_process_serves_until_sigterm_and_leaves_with_success(package: str, settings_class: str) -> None:
    """`serve` listens, drains on SIGTERM and returns."""
    program = (
        "import asyncio, logging, sys\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        f"from {package}.server import serve\n"
        f"from {package}.settings import {settings_class}\n"
        f"asyncio.run(serve({settings_class}(port=0)))\n"
        "print('returned')\n"
    )

    async def run() -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert process.stdout is not None
        while b"grpc_listening" not in (line := await process.stdout.readline()):
            assert line, "the process ended before it listened"
        process.send_signal(signal.SIGTERM)
        output = await process.stdout.read()
        return await process.wait(), output.decode()

    code, output = asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))

    assert code == 0
    assert "returned" in output


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """BATON_ROUTER_ variables fill the settings; arguments win."""
    from baton.router.settings import RouterSettings

    monkeypatch.setenv("BATON_ROUTER_DEFAULT_LINK_BYTES_PER_SECOND", "1e8")
    monkeypatch.setenv("BATON_ROUTER_PORT", "9000")

    settings = RouterSettings(port=1)

    assert (settings.port, settings.limits().default_link.bytes_per_second) == (1, 1e8)


@pytest.mark.parametrize(("total", "most"), [(1 << 30, 16_384), (128 << 20, 8_000)])
def test_what_a_router_remembers_fits_into_its_container(total: int, most: int) -> None:
    """At most as many placements as ever, and with less memory fewer."""
    free = total - (50 << 20)
    chosen = placements_within(Memory(total, free), Memory(64 << 30, 60 << 30))

    assert 256 <= chosen <= most
    assert chosen * PLACEMENT_BYTES < free - total // 10
    with pytest.raises(ConfigurationError, match=r"placements at least 2\.15 MB"):
        placements_within(Memory(64 << 20, 7 << 20), Memory(64 << 30, 60 << 30))
