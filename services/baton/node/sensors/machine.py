"""What the machine's sensors say. Each sensor fills in the fields of a sample that it knows, and leaves the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.apple import open_apple_sensor
from baton.node.sensors.cpu import CpuSensor, RaplSensor, read_cpu_temperature
from baton.node.sensors.memory import read_memory
from baton.node.sensors.nvidia import open_nvidia_sensor

log = logging.getLogger(__name__)

Sensor = Callable[[SystemSample], None]
"""Fills in what it measures; raises OSError where that cannot be read."""


class MachineSensors:
    """The sensors of this machine."""

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self._sensors = list(sensors)

    def read(self) -> SystemSample:
        """Return one reading. A sensor that fails is left out from then on."""
        sample = SystemSample()
        for sensor in list(self._sensors):
            try:
                sensor(sample)
            except OSError as error:
                log.info("sensor_left_out sensor=%s cause=%r", type(sensor).__name__, str(error))
                self._sensors.remove(sensor)
        return sample


def machine_sensors(device: str) -> MachineSensors:
    """Return the sensors of this machine and of the accelerator that a torch device such as "cuda:0" names."""
    always: list[Sensor] = [CpuSensor().read, read_cpu_temperature, read_memory, RaplSensor().read]
    own = (open_nvidia_sensor(device), open_apple_sensor())
    return MachineSensors([*always, *(sensor.read for sensor in own if sensor is not None)])
