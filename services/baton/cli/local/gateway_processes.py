"""`baton serve gateway --processes N`: the parent of gateways that share their ports."""

from __future__ import annotations

import asyncio
import signal
import sys

from baton.agent.child import ChildSpec
from baton.cli.local.ports import WantedPort, check_ports_are_free
from baton.cli.local.processes import MISCONFIGURED, ChildDiedError, Processes
from baton.config.settings import PROCESS_INDEX_VARIABLE
from baton.errors import ConfigurationError
from baton.gateway.settings import GatewaySettings

_FAREWELL_SECONDS = 5.0
"""Beyond the grace of the gateways' own drain."""


async def run_gateway_processes(settings: GatewaySettings, level: str) -> None:
    """Run processes, each started again if it ends, until a signal drains all; raise ConfigurationError at first."""
    _check_ports(settings)
    specs = [_spec(settings, index, level) for index in range(settings.processes)]
    grace_seconds = settings.drain_seconds + _FAREWELL_SECONDS
    processes = Processes(specs, lambda _name, line: print(line, flush=True), grace_seconds=grace_seconds)
    processes.mark_started()
    running = asyncio.ensure_future(processes.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait({running})
    if not running.cancelled():
        _settle(running)


def _settle(running: asyncio.Future[None]) -> None:
    try:
        running.result()
    except ChildDiedError as death:
        if death.status != MISCONFIGURED:
            raise
        problem = death.last_lines[-1] if death.last_lines else death.message
        raise ConfigurationError(problem.removeprefix("error: ")) from death


def _check_ports(settings: GatewaySettings) -> None:
    """Check that others are not there: two groups of processes on one port would share each other's requests."""
    wanted = [
        WantedPort(settings.metrics_port + index, f"metrics of process {index}", "--metrics-port")
        for index in range(settings.processes)
    ]
    check_ports_are_free(settings.http_host, [WantedPort(settings.http_port, "HTTP", "--http-port"), *wanted])
    check_ports_are_free(settings.grpc_host, [WantedPort(settings.grpc_port, "gRPC", "--grpc-port")])


def _spec(settings: GatewaySettings, index: int, level: str) -> ChildSpec:
    """Return how a process is started: every setting travels in its environment, whatever it came from."""
    values = settings.model_dump(mode="json")
    environment = {f"BATON_GATEWAY_{key.upper()}": str(value) for key, value in values.items() if value is not None}
    environment[PROCESS_INDEX_VARIABLE] = str(index)
    command = [sys.executable, "-m", "baton.cli", "serve", "gateway", "--log-level", level]
    return ChildSpec(f"gateway-{index}", command, environment)
