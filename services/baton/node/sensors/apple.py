"""Power, temperature and use of Apple silicon, by macmon, which needs no rights.

Source: the JSON of `macmon pipe` as its README describes it (https://github.com/vladkens/macmon, section Output).
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO

from baton.internal.v1.node_pb2 import SystemSample

log = logging.getLogger(__name__)

COMMAND = ("macmon", "pipe")
"""Writes a line once a second."""
_MAX_LINE_BYTES = 1 << 20
LASTING_SECONDS = 5.0
"""An older line says nothing about now; a machine that was asleep has one."""
_LEAST_DEGREES = 10.0
"""Below it a sensor of the GPU is switched off: no machine is as cold."""
_USES = {"gpu_usage": "gpu_usage", "pcpu_usage": "performance_cpu_usage", "ecpu_usage": "efficiency_cpu_usage"}


class AppleSensor:
    """What macmon says; runs it until it or this process ends. Raises OSError if it cannot be started."""

    def __init__(self, command: Sequence[str] = COMMAND, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: bytes | None = None
        self._arrived = 0.0
        self._process = subprocess.Popen(  # noqa: S603 - that program
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._follow, args=(self._process.stdout,), name="macmon", daemon=True)
        self._reader.start()

    def read(self, sample: SystemSample) -> None:
        """Fill in what the last whole line says, if there is one of now; raise OSError if the program has ended."""
        if not self._reader.is_alive():
            raise OSError(f"macmon ended with status {self._process.wait()}")
        if self._last is None or self._clock() - self._arrived > LASTING_SECONDS:
            return
        try:
            fill_from_macmon(self._last, sample)
        except ValueError as error:
            self.close()
            raise OSError(f"cannot be read: {error}") from error

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _follow(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    self._process.kill()
                    return
                self._last, self._arrived = line, self._clock()


def open_apple_sensor(platform: str = sys.platform) -> AppleSensor | None:
    """Return the sensor of an Apple machine; None on others, and where macmon is not installed."""
    if platform != "darwin":
        return None
    if shutil.which(COMMAND[0]):
        return AppleSensor()
    log.info("no_power_sensor cause='macmon is not installed (brew install macmon)'")
    return None


def fill_from_macmon(document: bytes, sample: SystemSample) -> None:
    """Fill in what a line of `macmon pipe` says; raise ValueError if it is none."""
    try:
        said = json.loads(document)
        temperatures = said["temp"]
        gpu_degrees, cpu_degrees = temperatures["gpu_temp_avg"], temperatures["cpu_temp_avg"]
        # Where no sensor measures the whole machine, sys_power is 0, and the sum of the chip's parts stands in.
        sample.power_watts = said.get("sys_power") or said["all_power"]
        sample.temperature_celsius = gpu_degrees if gpu_degrees > _LEAST_DEGREES else cpu_degrees
        for part in ("cpu", "gpu", "ane"):
            if f"{part}_power" in said:
                setattr(sample, f"{part}_power_watts", said[f"{part}_power"])
        for name, field in _USES.items():
            if name in said:
                setattr(sample, field, said[name][1])  # after the frequency, MHz
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"macmon: {error!r}") from error
