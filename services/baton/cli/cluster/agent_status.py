"""`baton agent status`: what an agent supervises, and what the machine's sensors say."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich import box
from rich.table import Table

from baton.agent.settings import DEFAULT_STATE_DIR
from baton.capacity.placement_table import format_seconds
from baton.cli.cluster.router_call import CALL_SECONDS, CommandTlsSettings
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes
from baton.config.settings import load_settings
from baton.errors import UnavailableError
from baton.internal.v1 import agent_service_pb2, agent_service_pb2_grpc
from baton.internal.v1.node_pb2 import SystemSample
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc
from baton.security.tls import TlsIdentity, secured_by
from baton.wire.quantities import seconds_from_duration

DEFAULT_AGENT = "127.0.0.1:8040"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_SENSOR_SECONDS = 2.5 if sys.platform == "darwin" else 0.5
"""Between two readings: use and power are differences, and Apple's sensors speak once a second."""
_NO_POWER = "not measured: " + (
    "needs macmon (brew install macmon)"
    if sys.platform == "darwin"
    else "no NVIDIA accelerator with nvidia-ml-py, and no energy counters of the CPU (RAPL) that this user may read"
)


def command(
    address: Annotated[str, typer.Option("--address", help="host:port of the agent.")] = DEFAULT_AGENT,
    state_dir: Annotated[Path, typer.Option(help="Where a joined machine keeps its certificate.")] = DEFAULT_STATE_DIR,
) -> None:
    """Print what an agent supervises and, for the agent of this machine, power, temperature and use."""
    with secured_by(own_identity(state_dir.expanduser())):
        status, sample = asyncio.run(_asked(address))
    make_console().print(status_table(status, sample))


def own_identity(state_folder: Path) -> TlsIdentity | None:
    """Return who asks: what the environment says, else the joined machine itself; None: connections have no TLS."""
    settings = load_settings(CommandTlsSettings, {})
    certificate, key, authorities = files = tuple(state_folder / name for name in ("node.crt", "node.key", "ca.crt"))
    given = settings.tls_identity()
    if given is not None or not all(file.is_file() for file in files):
        return given
    return TlsIdentity(certificate, key, authorities, settings.tls_server_name)


def status_table(status: agent_service_pb2.GetStatusResponse, sample: SystemSample | None) -> Table:
    """Return one row per fact; what no sensor says is left out."""
    table = Table("what", "value", box=box.SIMPLE, show_header=False, pad_edge=False)
    state = agent_service_pb2.WorkerState.Name(status.worker_state).removeprefix("WORKER_STATE_").lower()
    table.add_row("node", status.node_id)
    table.add_row("machine", status.machine)
    table.add_row("worker", f"{state.replace('_', ' ')}, pid {status.worker_process_id or '-'}")
    started = status.worker_started_at.ToJsonString() if status.worker_started_at.seconds else "-"
    table.add_row("started", f"{started}, {status.restart_count} restarts")
    if status.sleep_count:
        last = format_seconds(seconds_from_duration(status.last_sleep))
        table.add_row("slept", f"{status.sleep_count} times, the last time for {last}")
    if status.HasField("last_exit_status"):
        table.add_row("last exit", str(status.last_exit_status))
    for name, value in sensor_rows(sample):
        table.add_row(name, value)
    return table


def sensor_rows(sample: SystemSample | None) -> list[tuple[str, str]]:
    """Return what the sensors say, as text."""
    if sample is None:
        return []
    formats = {
        "power_watts": ("power", "{:.1f} W"),
        "gpu_power_watts": ("GPU power", "{:.1f} W"),
        "ane_power_watts": ("neural engine power", "{:.1f} W"),
        "cpu_power_watts": ("CPU power", "{:.1f} W"),
        "temperature_celsius": ("temperature", "{:.0f} °C"),
        "gpu_usage": ("GPU in use", "{:.0%}"),
        "performance_cpu_usage": ("CPU in use", "{:.0%}"),
        "efficiency_cpu_usage": ("efficiency cores in use", "{:.0%}"),
    }
    rows = [
        (name, text.format(getattr(sample, field))) for field, (name, text) in formats.items() if sample.HasField(field)
    ]
    if not sample.HasField("power_watts"):
        rows.insert(0, ("power", _NO_POWER))
    free, total = format_bytes(sample.available_memory_byte_count), format_bytes(sample.memory_byte_count)
    return [*rows, ("memory", f"{free} of {total} available")]


async def _asked(address: str) -> tuple[agent_service_pb2.GetStatusResponse, SystemSample | None]:
    try:
        async with open_channel(address) as channel:
            stub = agent_service_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]
            status = await stub.GetStatus(agent_service_pb2.GetStatusRequest(), timeout=CALL_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise UnavailableError(f"agent at {address}: {error_from_rpc(error).message}; does it run there?") from error
    is_here = address.rpartition(":")[0] in _LOOPBACK
    return status, await _sensed() if is_here else None


async def _sensed() -> SystemSample:
    from baton.node.sensors.machine import machine_sensors

    sensors = machine_sensors("cuda:0")
    sensors.read()
    await asyncio.sleep(_SENSOR_SECONDS)
    return sensors.read()
