"""The agent's process: supervises one worker and answers for it (baton.internal.v1.AgentService)."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shlex
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc

from baton.agent.child import ChildSpec
from baton.agent.health import HealthWatch, is_serving
from baton.agent.machine_sleep import LogindEvents, SleepHandler, SleepWatch
from baton.agent.model_workers import DRAIN_SECONDS, ModelWorkers, StartedWorker, slug_of
from baton.agent.running_agent import running_agent
from baton.agent.settings import AgentSettings
from baton.agent.supervisor import SupervisedState, Supervisor
from baton.internal.v1 import agent_service_pb2, agent_service_pb2_grpc
from baton.rpc.server import GrpcServer, host_port, wait_for_stop_signal
from baton.security.access import OWN, current_caller
from baton.security.tls import TlsIdentity, current_identity, secured_by
from baton.weight_transfer.pace import Pace
from baton.weight_transfer.service import SERVICE_NAME as WEIGHT_SERVICE_NAME
from baton.weight_transfer.service import WeightServicer
from baton.wire.quantities import duration_from_seconds

log = logging.getLogger(__name__)

_CHECK_INTERVAL_SECONDS = 2.0
_CHECK_TIMEOUT_SECONDS = 2.0
_MAX_FAILED_CHECKS = 3
"""In a row, of a worker that was healthy; it is started again then."""
_DRAIN_SECONDS = 1.0

_STATES = {
    SupervisedState.STARTING: agent_service_pb2.WORKER_STATE_STARTING,
    SupervisedState.SERVING: agent_service_pb2.WORKER_STATE_SERVING,
    SupervisedState.BACKING_OFF: agent_service_pb2.WORKER_STATE_BACKING_OFF,
    SupervisedState.STOPPED: agent_service_pb2.WORKER_STATE_STOPPED,
}


class AgentServicer(agent_service_pb2_grpc.AgentServiceServicer):
    """Answers from the supervisor's state."""

    def __init__(self, node_id: str, supervisor: Supervisor, rest: SleepHandler | None = None) -> None:
        self._node_id, self._supervisor = node_id, supervisor
        self._rest = rest

    async def GetStatus(  # noqa: N802 - the name is the proto's
        self, _request: agent_service_pb2.GetStatusRequest, _context: grpc.aio.ServicerContext[object, object]
    ) -> agent_service_pb2.GetStatusResponse:
        """Say what is supervised and how that has been going."""
        current_caller().check_speaks_for(self._node_id)
        message = status_message(self._node_id, self._supervisor)
        if self._rest is not None:
            message.sleep_count = self._rest.num_sleeps
            message.last_sleep.CopyFrom(duration_from_seconds(self._rest.last_sleep_seconds))
        return message


def status_message(node_id: str, supervisor: Supervisor) -> agent_service_pb2.GetStatusResponse:
    """Return the status of a supervisor as a message."""
    message = agent_service_pb2.GetStatusResponse(
        node_id=node_id,
        machine=f"{platform.node()} {platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        worker_state=_STATES[supervisor.state],
        worker_process_id=supervisor.process_id,
        restart_count=supervisor.num_restarts,
        last_exit_status=supervisor.last_exit_status,
        memory_byte_count=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    message.worker_started_at.FromNanoseconds(int(supervisor.started_at_seconds * 1e9))
    return message


def worker_command(settings: AgentSettings, role: str) -> Sequence[str]:
    """Return the command line of the worker."""
    return (
        *(sys.executable, "-m", "baton.cli", "serve", role),
        *(f"--host={settings.host}", f"--port={settings.worker_port}", f"--node-id={settings.node_id}"),
        *(("--insecure",) if settings.insecure else ()),
        *shlex.split(settings.worker_arguments),
    )


def worker_environment(role: str, settings: Mapping[str, str], identity: TlsIdentity | None) -> Mapping[str, str]:
    """Return what a machine's worker runs, as settings in its environment, where flags win over them."""
    values: dict[str, object] = {**settings}
    if identity:
        files = {"tls_cert_file": identity.cert_file, "tls_key_file": identity.key_file}
        values |= {**files, "tls_ca_file": identity.ca_file, "tls_server_name": identity.server_name}
    return {f"BATON_{role}_{name}".upper(): str(value) for name, value in values.items()}


async def serve(settings: AgentSettings) -> None:
    """Join a deployment if told to, then supervise the worker until SIGTERM or SIGINT; it ends before this returns."""
    if os.geteuid() == 0:
        log.warning("agent_is_root: it needs an account's rights to its model and state folders, and no more")
    stop = asyncio.ensure_future(wait_for_stop_signal())
    try:
        if settings.is_joining:
            with running_agent(settings.state_folder):
                await _join_and_supervise(settings, stop)
        else:
            async with asyncio.TaskGroup() as group:
                models = group.create_task(_run_models(settings, {}, settings.router_address, current_identity()))
                await _supervise(settings, worker_command(settings, settings.worker_role), {}, stop)
                models.cancel()
    finally:
        stop.cancel()


async def _join_and_supervise(settings: AgentSettings, stop: asyncio.Future[None]) -> None:
    from baton.agent.joining import joiner_of  # its packages are no part of the base installation

    joiner = joiner_of(settings)
    joining = asyncio.ensure_future(joiner.join())
    await asyncio.wait((stop, joining), return_when=asyncio.FIRST_COMPLETED)
    if not joining.done():
        joining.cancel()
        return
    joined = joining.result()
    with secured_by(joiner.identity):
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(joiner.renew(joined.certificate))
            role, given = joined.worker.role, joined.worker.settings
            models = group.create_task(_run_models(settings, given, given["router_address"], joiner.identity))
            environment = worker_environment(role, given, joiner.identity)
            await _supervise(settings, worker_command(settings, role), environment, stop)
            renewing.cancel()
            models.cancel()


_OWN_FLAGS = ("--model-dir", "--model-name", "--fast-port", "--metrics-port", "--tls-health-port", "--mock-shape")
"""Of a machine's own worker, which further ones do without: a mock is planned by the size of its own folder."""


def further_worker(worker_arguments: str, values: Mapping[str, str]) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return flags and settings of further workers, by the own one's, whose flags win; settings always have `dtype`."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in _OWN_FLAGS:
        parser.add_argument(flag)
    parser.add_argument("--dtype", default=values.get("dtype") or os.environ.get("BATON_WORKER_DTYPE", "float32"))
    own, flags = parser.parse_known_args(shlex.split(worker_arguments))
    return flags, {**values, "dtype": own.dtype}


async def _run_models(
    settings: AgentSettings, values: Mapping[str, str], router_address: str, identity: TlsIdentity | None
) -> None:
    """Serve further models as the router orders, until cancelled; each in a worker as the machine's own one."""
    if not router_address:
        return
    flags, common = further_worker(settings.worker_arguments, values)

    def make(name: str, folder: Path, kv_bytes: int) -> StartedWorker:
        with socket.socket() as free:
            free.bind((settings.host, 0))
            port = free.getsockname()[1]
        node_id = f"{settings.node_id}{OWN}{slug_of(name, 63 - len(settings.node_id + OWN))}"
        own = {**common, "model_dir": str(folder), "model_name": name, "planned_kv_bytes": str(kv_bytes)}
        own["drain_seconds"] = str(DRAIN_SECONDS)
        command = (sys.executable, "-m", "baton.cli", "serve", "worker", f"--host={settings.host}", f"--port={port}")
        environment = worker_environment("worker", own, identity)
        child = ChildSpec(node_id, (*command, f"--node-id={node_id}", *flags), environment)
        return StartedWorker(child, host_port(settings.host, port), node_id)

    parameter_bytes = 4 if common["dtype"] == "float32" else 2
    lends_at = host_port(settings.host, settings.port) if settings.port else ""
    await ModelWorkers(settings.node_id, make, parameter_bytes, _show, lends_at).run(router_address)


def _show(_name: str, line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a worker's own log lines


async def _supervise(
    settings: AgentSettings, command: Sequence[str], environment: Mapping[str, str], stop: asyncio.Future[None]
) -> None:
    worker_address = host_port(settings.host, settings.worker_port)
    supervisor = Supervisor(
        ChildSpec(settings.node_id, command, environment), _show, grace_seconds=settings.stop_grace_seconds
    )
    watch = HealthWatch(
        supervisor,
        lambda: is_serving(worker_address, _CHECK_TIMEOUT_SECONDS),
        interval_seconds=_CHECK_INTERVAL_SECONDS,
        num_failed_checks=_MAX_FAILED_CHECKS,
        start_timeout_seconds=settings.start_timeout_seconds,
    )
    server = GrpcServer(host_port(settings.host, settings.port))
    rest = SleepHandler(worker_address, watch, settings.sleep_wait_seconds)
    servicer = AgentServicer(settings.node_id, supervisor, rest)
    server.add(
        "baton.internal.v1.AgentService",
        lambda target: agent_service_pb2_grpc.add_AgentServiceServicer_to_server(servicer, target),  # type: ignore[no-untyped-call]
    )
    pace = Pace(settings.weight_bytes_per_second, lambda: supervisor.state is SupervisedState.SERVING)
    server.add(WEIGHT_SERVICE_NAME, WeightServicer({}, pace).register)
    await server.start()
    try:
        async with asyncio.TaskGroup() as group:
            works = [supervisor.run(), watch.run(), SleepWatch(rest.after_gap).run()]
            if sys.platform == "linux":
                works.append(LogindEvents(rest.before_sleep, rest.after_wake).run())
            tasks = [group.create_task(work) for work in works]
            await stop
            for task in tasks:
                task.cancel()
    finally:
        await server.drain(_DRAIN_SECONDS)
