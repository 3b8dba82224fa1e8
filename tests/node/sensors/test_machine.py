"""All sensors of a machine together."""

from __future__ import annotations

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.machine import MachineSensors, machine_sensors


def test_this_machine_says_how_much_memory_it_has() -> None:
    """The one thing that every machine can say."""
    sample = machine_sensors("cpu").read()

    assert 0 < sample.available_memory_byte_count < sample.memory_byte_count
    assert not sample.HasField("gpu_usage")


def test_a_sensor_that_fails_is_left_out_and_the_others_go_on() -> None:
    """It is asked once."""
    num_asked = 0

    def broken(_sample: SystemSample) -> None:
        nonlocal num_asked
        num_asked += 1
        raise OSError("not allowed")

    def sound(sample: SystemSample) -> None:
        sample.power_watts += 7

    sensors = MachineSensors([broken, sound])
    samples = [sensors.read(), sensors.read()]

    assert num_asked == 1
    assert [sample.power_watts for sample in samples] == [7, 7]
