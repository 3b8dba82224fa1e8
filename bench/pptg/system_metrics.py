"""What the nodes' sensors say during a measurement, once a second, and the energy that follows from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np

from bench.client.completion import Clock
from bench.client.http_client import HttpClient, HttpError

NODE_SYSTEM_PATH = "/state/nodeSystem"
SENSORS = ("gpuUsage", "temp", "sysPower", "pcpuUsage", "ecpuUsage")
"""exo's names: GPU share 0 to 1, degrees Celsius, watts, shares of the performance and efficiency cores."""
_POLL_SECONDS = 1.0
_POLL_TIMEOUT_SECONDS = 5.0


class PowerSample(NamedTuple):
    """Power draw of one node at one time of the client's clock."""

    seconds: float
    watts: float


class SystemSample(NamedTuple):
    """Sensors of one node at one time of the client's clock; sensors that it lacks are missing."""

    seconds: float
    values: Mapping[str, float]


class SystemMetrics:
    """Samples per node, in the order of their times."""

    def __init__(self) -> None:
        self.by_node: dict[str, list[SystemSample]] = {}

    def take(self, seconds: float, nodes: Mapping[str, Mapping[str, float]]) -> None:
        """Add one poll: sensors by node."""
        for node_id, sensors in nodes.items():
            values = {name: sensors[name] for name in SENSORS if sensors.get(name) is not None}
            self.by_node.setdefault(node_id, []).append(SystemSample(seconds, values))

    def energy_joules(self, begin_seconds: float, end_seconds: float) -> float | None:
        """Return the energy of all nodes in a window; None where no node reports its power."""
        powers = [
            [
                PowerSample(sample.seconds, sample.values["sysPower"])
                for sample in samples
                if "sysPower" in sample.values
            ]
            for samples in self.by_node.values()
        ]
        known = [power for power in powers if power]
        return sum(energy_joules(power, begin_seconds, end_seconds) for power in known) if known else None


@asynccontextmanager
async def sampled(client: HttpClient, clock: Clock) -> AsyncIterator[SystemMetrics]:
    """Poll the nodes' sensors once a second while the context is open; nothing where the server has no such path."""
    metrics = SystemMetrics()
    if not await _poll(client, clock, metrics):
        yield metrics
        return
    task = asyncio.create_task(_poll_forever(client, clock, metrics))
    try:
        yield metrics
    finally:
        task.cancel()
        await asyncio.wait([task])
        await _poll(client, clock, metrics)


def energy_joules(samples: Sequence[PowerSample], begin_seconds: float, end_seconds: float) -> float:
    """Return the energy of a window by the trapezoid rule; power at the window's ends is interpolated.

    Before the first sample and after the last, power is taken as constant.

    Args:
        samples: 1 or more, ascending in time.
        begin_seconds: Beginning of the window.
        end_seconds: End of the window, not before its beginning.
    """
    times, watts = np.array(samples).T
    inner = times[(begin_seconds < times) & (times < end_seconds)]
    points = np.concatenate(([begin_seconds], inner, [end_seconds]))
    power = np.interp(points, times, watts)
    return float(np.diff(points) @ (power[1:] + power[:-1]) / 2)


async def _poll_forever(client: HttpClient, clock: Clock, metrics: SystemMetrics) -> None:
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        await _poll(client, clock, metrics)


async def _poll(client: HttpClient, clock: Clock, metrics: SystemMetrics) -> bool:
    """Take one poll; return whether the server answered. A poll that fails is a sample less, not a failed run."""
    try:
        async with asyncio.timeout(_POLL_TIMEOUT_SECONDS):
            nodes = json.loads(await client.get_json_text(NODE_SYSTEM_PATH))
    except (HttpError, OSError, ValueError, TimeoutError):
        return False
    metrics.take(clock(), nodes)
    return True
