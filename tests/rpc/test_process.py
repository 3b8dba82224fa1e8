"""A stop signal that comes while a service starts, and what a process keeps for good."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys

import pytest

from baton.rpc.process import freeze_loaded_objects

_SCRIPT = """
import asyncio, sys, threading
from baton.rpc.process import exit_on_startup_signal
from baton.rpc.server import wait_for_stop_signal

exit_on_startup_signal(int(sys.argv[1]))

async def main(waits):
    if waits:
        waiting = asyncio.create_task(wait_for_stop_signal())
        await asyncio.sleep(0)
        print("ready", flush=True)
        await waiting
        print("drained", flush=True)
    else:
        print("ready", flush=True)
        await asyncio.to_thread(threading.Event().wait, 120)  # a model that loads

asyncio.run(main(sys.argv[2] == "waits"))
"""


@pytest.mark.parametrize(
    ("process_id", "state", "status", "output"),
    [
        ("1", "loads", 128 + signal.SIGTERM, ""),
        ("2", "loads", -signal.SIGTERM, ""),
        ("1", "waits", 0, "drained\n"),
    ],
)
def test_it_ends_a_start_and_drains_what_serves(process_id: str, state: str, status: int, output: str) -> None:
    """The first process of a container has a handler from the start; who waits for the signal takes it over."""
    command = [sys.executable, "-c", _SCRIPT, process_id, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=300)

    assert (process.returncode, rest) == (status, output)


def test_what_is_alive_is_left_out_of_later_collections() -> None:
    """They walk only what came since, and come seldom; it stays so, which later tests do not notice."""
    kept = [[number] for number in range(1000)]
    thresholds = gc.get_threshold()
    gc.set_threshold(700)
    try:
        freeze_loaded_objects()

        assert gc.get_freeze_count() >= len(kept)
        assert not any(candidate is kept for candidate in gc.get_objects())
        assert gc.get_threshold()[0] > 700
    finally:
        gc.set_threshold(*thresholds)
