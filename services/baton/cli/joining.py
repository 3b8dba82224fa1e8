"""`baton invite`, `baton join CODE`, `baton leave`: machines come to a cluster by a code of few words, and go."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from baton.agent.running_agent import agent_process
from baton.agent.settings import DEFAULT_STATE_DIR, AgentSettings, node_id_of
from baton.cli.agent import installed_service, write_service
from baton.cli.cluster.router_call import DEFAULT_ROUTER, RouterOption, call_router
from baton.cli.local.topology import second_engine
from baton.cli.models import pull
from baton.cli.serve import serve_role, take_option
from baton.cli.terminal.console import make_console
from baton.config.settings import load_settings, parse_flags
from baton.discovery.lan import find_router
from baton.discovery.network import best_address, lan_addresses, route_towards
from baton.errors import ConfigurationError, UnavailableError
from baton.installation import install_line, lacking
from baton.internal.v1 import join_service_pb2
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.security.tls import secured_by

JOIN_PORT = 8013
"""Where `baton up` takes machines in, if the port is free."""
_FIND_SECONDS = 10.0
_CONNECT_SECONDS = 3.0
_LEAVE_SECONDS = 60.0
_Engine = Annotated[str, typer.Option(help="torch, mlx or mock; default: mlx where installed, else torch.")]
_WorkerArguments = Annotated[str, typer.Option(help="Further flags of `baton serve worker`.")]
_IsInstalled = Annotated[
    bool, typer.Option("--install", help="Have systemd or launchd run it from now on, at every start.")
]
_StateDir = Annotated[Path, typer.Option(help="Folder for this machine's key and certificate.")]


def invite(
    router: RouterOption = DEFAULT_ROUTER,
    address: Annotated[
        str, typer.Option(help="IPv4 address at which others reach this machine; default: a cable's before Wi-Fi's.")
    ] = "",
) -> None:
    """Print a code by which one machine joins, and open `baton up` to other machines if it is not open yet."""
    show_invitation(router, address, make_console())


def show_invitation(router: str, address: str, console: Console) -> None:
    """Ask a router for a code, and print it; raise ConfigurationError without packages or network, else BatonError."""
    check_installed()
    request = join_service_pb2.InviteRequest(address=address)
    answer = call_router(router, lambda channel: JoinServiceStub(channel).Invite(request, timeout=30.0))  # type: ignore[no-untyped-call]
    if answer.advice:
        console.print(f"[yellow]{answer.advice}[/]", highlight=False)
    ends = answer.expires_at.ToDatetime().strftime("%H:%M UTC")
    console.print(f"One machine joins until {ends} by\n", highlight=False)
    console.print(f"  baton join {answer.code}\n", style="bold", highlight=False)
    where = answer.address if not answer.address.startswith(":") else f"HOST{answer.address}"
    console.print(f"and, where multicast does not get through, `--address {where}`.\n", highlight=False, soft_wrap=True)


def join(
    code: Annotated[
        str, typer.Argument(help="As `baton up --lan` or `baton invite` printed it; none: goes on where it has joined.")
    ] = "",
    address: Annotated[str, typer.Option(help="host[:port] that was printed; default: asks the local network.")] = "",
    name: Annotated[str, typer.Option(help="Node id of this machine; default: its host name.")] = "",
    host: Annotated[str, typer.Option(help="This machine's address for others; default: chosen.")] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of its worker.")] = 8020,
    engine: _Engine = "",
    worker_arguments: _WorkerArguments = "",
    is_installed: _IsInstalled = False,
    state_dir: _StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Make this machine part of a cluster: it gets a certificate, is measured, and works as the cluster wants."""
    check_installed()
    from baton.agent.code_entry import Applicant, token_for  # whose packages are in an extra
    from baton.agent.joining import Joiner, finder
    from baton.agent.membership import Membership
    from baton.security.join_code import parse_code

    folder, console = state_dir.expanduser(), make_console()
    membership = Membership(folder, "baton")
    if membership.flags and not code:
        _work(membership.flags, is_installed=is_installed)
        return
    if not code:
        raise ConfigurationError("this machine has joined nothing yet: give the code that `baton invite` prints")
    wanted = parse_code(code)
    if membership.has_joined or agent_process(folder):
        where = f" {membership.asked_address()}" if membership.has_joined else ""
        remedy = "`baton join` without a code goes on there, `baton leave` ends that"
        raise ConfigurationError(f"this machine has joined{where} already: {remedy}")
    given = address if ":" in address else f"{address}:{JOIN_PORT}"
    asked = given if address else asyncio.run(find_router(_FIND_SECONDS))
    router_host = asked.rpartition(":")[0]
    own = best_address(lan_addresses(), route=route_towards(router_host), towards=socket.gethostbyname(router_host))
    node_id = name or node_id_of(socket.gethostname())
    applicant = Applicant(node_id, host or own.host, port)
    token = asyncio.run(token_for(wanted, applicant, asked))
    token_file = membership.keep_token(token.text)
    try:
        joined = asyncio.run(Joiner(token, node_id, membership, finder(asked)).ask())
        _check_reachable(joined.worker.settings)
    except BaseException:
        membership.forget()
        raise
    console.print(f"[green]✓[/] {node_id} at {applicant.host} has joined {asked}", highlight=False)
    for advice in filter(None, ("" if host else own.advice, _lid_advice())):
        console.print(f"[yellow]{advice}[/]", highlight=False, soft_wrap=True)
    chosen = f"--engine={engine} " if engine else ""
    flags = (
        f"--join-token-file={token_file}",
        f"--join-address={asked}",
        f"--state-dir={folder}",
        f"--host={applicant.host}",
        f"--worker-port={port}",
        f"--worker-node-id={node_id}",
        f"--worker-arguments={chosen}{worker_arguments}",
    )
    membership.keep_flags(flags)
    _work(flags, is_installed=is_installed)


def _work(flags: Sequence[str], *, is_installed: bool) -> None:
    """Bring the cluster's model, then run this machine's agent, or have the system run it."""
    from baton.agent.joining import joiner_of

    settings, console = load_settings(AgentSettings, parse_flags(AgentSettings, flags)), make_console()
    joiner = joiner_of(settings)
    worker = asyncio.run(joiner.join()).worker
    given, flags = take_option(flags, "--worker-arguments")
    own = [] if "--engine" in given else _engine_flags(worker.settings)
    if worker.weight_sources and "--model-dir" not in given:
        name = worker.settings.get("model_dir") or worker.settings["model_name"]
        with secured_by(joiner.identity):
            own.append(f"--model-dir={pull(name, console, worker.weight_sources)}")
    command = (*flags, f"--worker-arguments={shlex.join(own)} {given}".rstrip())
    if is_installed:
        found = installed_service(command)
        write_service(found)
        subprocess.run(found.start_command, check=True)
        return
    console.print("It works until Ctrl-C; `baton join` goes on, `baton leave` forgets the cluster.", highlight=False)
    serve_role("agent", command)


def leave(state_dir: _StateDir = DEFAULT_STATE_DIR) -> None:
    """Take this machine out of its cluster: what runs is finished or goes on elsewhere, then it is forgotten."""
    check_installed()
    from baton.agent.membership import Membership

    folder = state_dir.expanduser()
    membership, service, process = Membership(folder, "baton"), installed_service(()), agent_process(folder)
    if not (membership.has_joined or process):
        raise ConfigurationError(f"this machine has joined nothing (--state-dir {folder})")
    if service.path.is_file():
        subprocess.run(service.stop_command, check=True)
        service.path.unlink()
    elif process:
        os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + _LEAVE_SECONDS
    while agent_process(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    if process := agent_process(folder):
        raise UnavailableError(f"the agent, process {process}, has not ended in {_LEAVE_SECONDS:.0f} s: kill it, again")
    membership.forget()
    make_console().print("[green]✓[/] this machine has left; its key and certificate are deleted", highlight=False)


def check_installed() -> None:
    """Check that the packages are there; raise ConfigurationError if one is missing."""
    if missing := lacking("agent"):
        raise ConfigurationError(f"joining needs {', '.join(missing)}: {install_line('agent')}")


def _check_reachable(settings: Mapping[str, str]) -> None:
    """Check that this machine gets through to the router and the cache index."""
    for name in ("router_address", "cache_index_address"):
        address = settings.get(name, "")
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal()):
            continue
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except OSError as error:
            remedy = f"let port {port} through the firewall there (`sudo ufw allow {port}/tcp`), and join again"
            raise UnavailableError(
                f"{name} {address} is blocked ({error.strerror or 'timed out'}): {remedy}"
            ) from error


def _engine_flags(settings: Mapping[str, str]) -> list[str]:
    """Return which engine this machine has, unless the cluster says which."""
    if "engine" in settings:
        return []
    device = ["--device=cuda:0"] if Path("/dev/nvidia0").exists() and "device" not in settings else []
    return ["--engine=mlx"] if second_engine() == "mlx" else ["--engine=torch", *device]


def _lid_advice() -> str:
    """Return what to do where a closed lid sends the machine to sleep; empty: it has no battery, so no lid."""
    if psutil.sensors_battery() is None:
        return ""
    remedy = "`sudo pmset -c disablesleep 1`" if os.uname().sysname == "Darwin" else "HandleLidSwitch=ignore (logind)"
    return f"a closed lid sends this machine to sleep, and its work elsewhere until it wakes: {remedy} keeps it awake"
