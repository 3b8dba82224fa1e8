"""Power, temperature and use of Apple silicon: by macmon, which needs no rights, or by powermetrics, as root.

Sources: the JSON of `macmon pipe` as its README describes it (https://github.com/vladkens/macmon, section Output), and
powermetrics(1) with `--format plist`, whose powers are milliwatts.
"""

from __future__ import annotations

import json
import logging
import os
import plistlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any
from xml.parsers.expat import ExpatError

from baton.internal.v1.node_pb2 import SystemSample

_READ_BYTES = 1 << 16
_MAX_DOCUMENT_BYTES = 4 << 20
LASTING_SECONDS = 5.0
"""An older document says nothing about now; a machine that was asleep has one."""


class DocumentStream:
    """Runs the program until it or this process ends; `end` is the last bytes of every document."""

    def __init__(self, command: Sequence[str], end: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = command[0]
        self._end = end
        self._clock = clock
        self._last: bytes | None = None
        self._arrived = 0.0
        self._process = subprocess.Popen(  # noqa: S603 - programs that the sensors name
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name=self._name, daemon=True)
        self._reader.start()

    def latest(self) -> bytes | None:
        """Return the last whole document, None where there is none or it is old; raise OSError if the program ended."""
        if not self._reader.is_alive():
            raise OSError(f"{self._name} ended with status {self._process.wait()}")
        return self._last if self._clock() - self._arrived <= LASTING_SECONDS else None

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _read(self, output: IO[bytes]) -> None:
        unread = b""
        with output:
            while data := output.read1(_READ_BYTES):  # type: ignore[attr-defined]
                *whole, unread = (unread + data).split(self._end)
                if whole:
                    self._last, self._arrived = whole[-1] + self._end, self._clock()
                if len(unread) > _MAX_DOCUMENT_BYTES:
                    self._process.kill()


log = logging.getLogger(__name__)

Fill = Callable[[bytes, SystemSample], None]
"""Fills a sample from a document; raises ValueError where that is none."""

_LEAST_DEGREES = 10.0
"""Below it a sensor of the GPU is switched off: no machine is as cold."""
_MACMON_USES = {"gpu_usage": "gpu_usage", "pcpu_usage": "performance_cpu_usage", "ecpu_usage": "efficiency_cpu_usage"}
_PART_POWERS = {f"{part}_power": f"{part}_power_watts" for part in ("cpu", "gpu", "ane")}
"""Fields of a sample by what both programs call them."""
_POWERMETRICS = ("powermetrics", "--samplers", "cpu_power,gpu_power", "--sample-rate", "1000", "--format", "plist")


class AppleSensor:
    """What one of the programs says once a second. `open_apple_sensor` makes it."""

    def __init__(self, stream: DocumentStream, fill: Fill) -> None:
        self._stream = stream
        self._fill = fill

    def read(self, sample: SystemSample) -> None:
        """Fill in power, temperature and use, once the program has said something; raise OSError if it has ended."""
        document = self._stream.latest()
        if document is None:
            return
        try:
            self._fill(document, sample)
        except ValueError as error:
            self.close()
            raise OSError(f"cannot be read: {error}") from error

    def close(self) -> None:
        """End the program."""
        self._stream.close()


def open_apple_sensor(platform: str = sys.platform, *, is_root: bool | None = None) -> AppleSensor | None:
    """Return the sensor of an Apple machine; None on others, and where neither program can be used."""
    if platform != "darwin":
        return None
    if shutil.which("macmon"):
        return AppleSensor(DocumentStream(("macmon", "pipe"), b"\n"), fill_from_macmon)
    if shutil.which("powermetrics") and (os.geteuid() == 0 if is_root is None else is_root):
        return AppleSensor(DocumentStream(_POWERMETRICS, b"</plist>"), fill_from_powermetrics)
    log.info("no_power_sensor cause='macmon is not installed (brew install macmon), and powermetrics needs root'")
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
        _set_all(sample, said, _PART_POWERS)
        for name, field in _MACMON_USES.items():
            if name in said:
                setattr(sample, field, said[name][1])  # after the frequency, MHz
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"macmon: {error!r}") from error


def fill_from_powermetrics(document: bytes, sample: SystemSample) -> None:
    """Fill in what a document of powermetrics says, which knows no temperatures; raise ValueError if it is none."""
    try:
        said = plistlib.loads(document.lstrip(b"\0\n"))
        processor = said["processor"]
        watts = {name: milliwatts / 1000 for name, milliwatts in processor.items() if name.endswith("_power")}
        sample.power_watts = watts["combined_power"]
        _set_all(sample, watts, _PART_POWERS)
        if "idle_ratio" in said.get("gpu", {}):
            sample.gpu_usage = 1 - said["gpu"]["idle_ratio"]
        for letter, field in (("P", "performance_cpu_usage"), ("E", "efficiency_cpu_usage")):
            clusters = [each for each in processor.get("clusters", ()) if each["name"].startswith(letter)]
            if cores := [core for cluster in clusters for core in cluster["cpus"]]:
                setattr(sample, field, _usage(cores))
    except (KeyError, TypeError, AttributeError, ExpatError) as error:
        raise ValueError(f"powermetrics: {error!r}") from error


def _set_all(sample: SystemSample, values: Mapping[str, float], fields: Mapping[str, str]) -> None:
    for name, field in fields.items():
        if name in values:
            setattr(sample, field, values[name])


def _usage(cores: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean share of time in which cores were neither idle nor switched off."""
    shares = [1.0 - float(core["idle_ratio"]) - float(core.get("down_ratio", 0.0)) for core in cores]
    return min(1.0, max(0.0, sum(shares) / len(shares)))
