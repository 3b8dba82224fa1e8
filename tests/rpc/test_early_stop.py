"""A stop signal that comes while a service starts."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_SCRIPT = """
import asyncio, sys, threading
from baton.rpc.early_stop import end_at_early_stop
from baton.rpc.server import wait_for_stop_signal

end_at_early_stop(int(sys.argv[1]))

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
