"""`baton up`: starts all of Baton on this machine as separate processes, and stops all of it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn, cast

import typer
from rich.console import Console

from baton.agent.child import OnLine
from baton.agent.health import is_serving
from baton.agent.model_workers import ModelWorkers
from baton.agent.settings import node_id_of
from baton.capacity.snapshot import NodeRole
from baton.cli.chat import DEFAULT_URL
from baton.cli.cluster.gateway_client import KEY_VARIABLE
from baton.cli.cluster.router_call import DEFAULT_ROUTER
from baton.cli.joining import check_installed, show_invitation
from baton.cli.local.launch import LocalCluster, ProcessPlan, model_workers, plan_processes, write_assignment
from baton.cli.local.ports import WantedPort, check_ports_are_free
from baton.cli.local.preflight import check_site
from baton.cli.local.processes import MISCONFIGURED, ChildDiedError, Processes
from baton.cli.local.readiness import CALL_SECONDS, knows_nodes, nodes_of, wait_until
from baton.cli.local.topology import NodeSpec, default_topology, read_topology, second_engine
from baton.cli.models import pull
from baton.cli.serve import check_level
from baton.cli.terminal.console import (
    PrefixedLines,
    QuietLines,
    StartingLine,
    curl_line,
    make_console,
    print_death,
    processes_table,
)
from baton.cli.terminal.tables import print_table
from baton.demo import DEMO, MODELS
from baton.discovery.network import best_address, lan_addresses
from baton.errors import BatonError, ConfigurationError
from baton.router.models.desired import read_desired
from baton.security.exposure import is_loopback
from baton.telemetry.logs import configure_logging
from baton.weights.model_name import served_name_of

_Model = Annotated[
    str, typer.Option(help=f"Checkpoint folder, org/name\\[@revision] of a hub, or a demo: {' or '.join(MODELS)}.")
]
_NodesFile = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with [\\[node]] tables, for other shapes: each has an engine and a role, which is prefill, "
        "decode or worker (both)."
    ),
]
_ModelsFile = Annotated[
    Path | None,
    typer.Option(help="TOML file of further models, which `baton models load` adds to; default: one in --state-dir."),
]
_KeysFile = Annotated[
    str, typer.Option(help="File with a `name:key` per line: who may ask.", envvar="BATON_GATEWAY_API_KEYS_FILE")
]
_Origins = Annotated[
    str,
    typer.Option(
        help="Comma-separated origins whose pages may ask, `*`: any.", envvar="BATON_GATEWAY_CORS_ALLOW_ORIGINS"
    ),
]
_CertFile = Annotated[
    str, typer.Option(help="Certificate of REST and gRPC, PEM: TLS.", envvar="BATON_GATEWAY_HTTPS_CERT_FILE")
]
_KeyFile = Annotated[str, typer.Option(help="Key of that certificate, PEM.", envvar="BATON_GATEWAY_HTTPS_KEY_FILE")]
_ClientCaFile = Annotated[
    str,
    typer.Option(
        help="Authorities of which clients must show a certificate, PEM.", envvar="BATON_GATEWAY_CLIENT_CA_FILE"
    ),
]
_IsStrict = Annotated[
    bool, typer.Option("--strict", help="Refuse unknown fields and hints with 400.", envvar="BATON_GATEWAY_STRICT")
]
"""Settings of the gateway, to which they are passed on."""
_IsLan = Annotated[
    bool, typer.Option("--lan", help="Let other machines join, by mutual TLS, and print a code for the first.")
]
_StateDir = Annotated[Path, typer.Option(help="Folder for the cluster's certificates.", envvar="BATON_UP_STATE_DIR")]
_IsInsecure = Annotated[bool, typer.Option("--insecure", help="Serve beyond loopback without TLS and without keys.")]


_LINK_SECONDS = 10.0
"""Longest wait for the measurement of links, which a node's settings may also rule out."""


class StopRequestedError(Exception):
    """The user asked to stop."""


def command(
    model: _Model = DEMO,
    model_name: Annotated[str, typer.Option(help="Name to serve it under; default: the hub's, or the folder's.")] = "",
    lora: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter in PEFT's format as NAME=FOLDER; may be repeated.")
    ] = None,
    prefill: Annotated[
        str, typer.Option(help="Pin parts: engine of a node that only prefills, torch, mlx or mock; default: torch.")
    ] = "",
    decode: Annotated[
        str, typer.Option(help="Engine of the node that decodes then; default: mlx where installed, else torch.")
    ] = "",
    nodes: _NodesFile = None,
    models_file: _ModelsFile = None,
    host: Annotated[str, typer.Option(help="Address that everything binds to.", envvar="BATON_HOST")] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the REST API.", envvar="BATON_HTTP_PORT")
    ] = 8000,
    grpc_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the public gRPC API.", envvar="BATON_GRPC_PORT")
    ] = 8001,
    api_keys_file: _KeysFile = "",
    cors_allow_origins: _Origins = "",
    https_cert_file: _CertFile = "",
    https_key_file: _KeyFile = "",
    client_ca_file: _ClientCaFile = "",
    is_strict: _IsStrict = False,
    is_insecure: _IsInsecure = False,
    is_lan: _IsLan = False,
    state_dir: _StateDir = Path("~/.local/state/baton-up"),
    log_level: Annotated[str, typer.Option(help="Level of all processes.", envvar="BATON_LOG_LEVEL")] = "info",
    is_verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print all that the processes log, not only their warnings.")
    ] = False,
    start_timeout: Annotated[float, typer.Option(help="Longest time until all are healthy, seconds.")] = 300.0,
) -> None:
    """Start everything on this machine: gateway, router, cache index, and two workers.

    Each worker prefills and decodes, as every request has it, and goes on alone when the other is gone.
    """
    check_level(log_level)
    configure_logging("up", log_level)
    if nodes and (prefill or decode):
        raise ConfigurationError("--nodes: its tables name the engines; leave out --prefill and --decode")
    specs = read_topology(nodes) if nodes else default_topology(prefill, decode, second=second_engine())
    model_dir = _find_model(model)
    name = model_name or (model if model in MODELS else served_name_of(model_dir))
    clients = {
        "api_keys_file": api_keys_file,
        "cors_allow_origins": cors_allow_origins,
        "https_cert_file": https_cert_file,
        "https_key_file": https_key_file,
        "client_ca_file": client_ca_file,
        "strict": "true" if is_strict else "",
    }
    given = {key: value for key, value in clients.items() if value}
    adapters, is_told, ports = ",".join(lora or ()), is_verbose or log_level.lower() == "debug", (http_port, grpc_port)
    site = LocalCluster(host, *ports, model_dir, name, log_level, adapters, given, is_insecure, state_dir)
    is_public = is_lan and {"api_keys_file", "https_cert_file"} <= given.keys()
    site = replace(site, models_file=models_file, public_host=best_address(lan_addresses()).host if is_public else "")
    raise typer.Exit(_start(site, specs, start_timeout, is_verbose=is_told, is_lan=is_lan))


def _start(
    site: LocalCluster, specs: Sequence[NodeSpec], start_timeout_seconds: float, *, is_verbose: bool, is_lan: bool
) -> int:
    """Check what can be known before anything runs, then run it; return the exit status."""
    check_ports_are_free(
        site.host,
        (
            WantedPort(site.http_port, "HTTP", "--http-port or BATON_HTTP_PORT"),
            WantedPort(site.grpc_port, "gRPC", "--grpc-port or BATON_GRPC_PORT"),
        ),
    )
    if is_lan:
        check_installed()
        if not site.lan_dir:
            raise ConfigurationError(f"--lan: opens what is bound to loopback; leave out --host {site.host}")
    if not site.is_insecure and not is_loopback(site.host):
        raise ConfigurationError(
            f"--host {site.host}: whoever reaches it from another machine would be believed, for the processes of "
            "`baton up` have no certificates there: leave --host out and pass --lan, or pass --insecure"
        )
    console, plans = make_console(), plan_processes(site, specs)
    if site.lan_dir:
        write_assignment(site, specs[0], plans)
    needs = check_site(site, specs, partial(_say_checked, console))
    dtype = next(iter(needs.values())).dtype
    if site.kept_models_file and site.kept_models_file.is_file():
        kept = [each.name for each in read_desired(site.kept_models_file) if not each.is_unloaded]
        _say_checked(console, "models", f"{', '.join(kept) or 'none'} beside it, as {site.kept_models_file} has them")
    started = _Started(site, plans, console, {name: need.main_bytes for name, need in needs.items()}, is_lan)
    started = started._replace(models=partial(_models, site, specs, plans, 4 if dtype == "float32" else 2))
    return asyncio.run(run_up(started, start_timeout_seconds, is_verbose=is_verbose))


class _Started(NamedTuple):
    """What is started, and where that is told."""

    site: LocalCluster
    plans: Sequence[ProcessPlan]
    console: Console
    weight_bytes: Mapping[str, int]
    """That nodes load into main memory, by node id."""
    is_lan: bool
    """Whether other machines are let in."""
    models: Callable[[OnLine], Coroutine[None, None, None]] | None = None
    """Runs further models as the router orders, telling of their output; None: nothing does."""


async def run_up(started: _Started, start_timeout_seconds: float, *, is_verbose: bool) -> int:
    """Start the processes, say when they are healthy, run until stopped; return the exit status."""
    console, names = started.console, [plan.child.name for plan in started.plans]
    all_lines = PrefixedLines(console, names)
    quiet_lines = QuietLines(all_lines)
    on_line = all_lines if is_verbose else quiet_lines
    on_death = partial(_say_restarts, console)
    processes = Processes([plan.child for plan in started.plans], on_line, on_death=on_death)
    line = StartingLine(names, quiet_lines.events, started.weight_bytes, processes.process_id)
    status = 0
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(processes.run())
            group.create_task(_announce(started, processes, line, start_timeout_seconds))
            if started.models:
                group.create_task(started.models(on_line))
            group.create_task(_raise_on_signal(processes, console))
    except* StopRequestedError:
        console.print("[bold]Baton is down.[/]")
    except* ChildDiedError as deaths:
        for death in deaths.exceptions:
            if isinstance(death, ChildDiedError):
                print_death(console, death)
                status = max(status, MISCONFIGURED if death.status == MISCONFIGURED else 1)
    except* TimeoutError:
        console.print(f"[bold red]Not healthy within {start_timeout_seconds:.0f} s; everything was stopped.[/]")
        status = 1
    return status


async def _models(
    site: LocalCluster, specs: Sequence[NodeSpec], plans: Sequence[ProcessPlan], parameter_bytes: int, on_line: OnLine
) -> None:
    """Be the agent of this machine: run further models as the router orders."""
    router = next(plan.address for plan in plans if plan.role == "router")
    lends_at = next((f":{plan.address.rpartition(':')[2]}" for plan in plans if plan.engine), "")
    workers = ModelWorkers(
        node_id_of(socket.gethostname()), model_workers(site, specs, plans), parameter_bytes, on_line, lends_at
    )
    await workers.run(router)


async def _announce(started: _Started, processes: Processes, line: StartingLine, timeout_seconds: float) -> None:
    site, plans, console = started.site, started.plans, started.console
    with console.status(line) if console.is_terminal else nullcontext():
        async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as group:
            for plan in plans:
                group.create_task(_announce_one(plan, console, line))
        await _wait_until_acquainted(plans)
    processes.mark_started()
    router = next(plan.address for plan in plans if plan.role == "router")
    devices = {state.node.node_id: state.node.device for state in await nodes_of(router)}
    process_ids = {plan.child.name: processes.process_id(plan.child.name) for plan in plans}
    print_table(console, processes_table(plans, devices, process_ids))
    if site.needs_key:
        console.print(f"The gateway asks for API keys: put one of them into [bold]{KEY_VARIABLE}[/].\n")
    console.print("Ask it something:\n")
    console.print(f"  {curl_line(site)}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(f"open [bold]{site.url}/ui[/] in a browser,", highlight=False)
    nodes_line = "baton nodes" if router == DEFAULT_ROUTER else f"baton nodes --router {router}"
    trust = f"SSL_CERT_FILE={shlex.quote(site.https_cert_file)} " if site.https_cert_file else ""
    chat_line = "baton chat" if site.url == DEFAULT_URL else f"{trust}baton chat --url {site.url}"
    console.print(f"or run [bold]{chat_line}[/]; [bold]{nodes_line}[/] shows what the router knows.")
    console.print("Ctrl-C stops everything.\n")
    if started.is_lan:
        missing = "where it has --api-keys-file, --https-cert-file and --https-key-file; as it is, only here"
        public = f"at [bold]{site.url}[/]" if site.public_host else missing
        console.print(f"Clients on other machines are answered {public}.", highlight=False, soft_wrap=True)
        try:
            await asyncio.to_thread(show_invitation, router, site.public_host, console)
        except BatonError as error:
            console.print(f"[bold red]No machine can join:[/] {error.message}", highlight=False, soft_wrap=True)


async def _announce_one(plan: ProcessPlan, console: Console, line: StartingLine) -> None:
    await wait_until(lambda: is_serving(plan.health_address, CALL_SECONDS))
    line.finish(plan.child.name)
    console.print(f"[green]✓[/] {plan.child.name} is healthy on {plan.address}", highlight=False)


async def _wait_until_acquainted(plans: Sequence[ProcessPlan]) -> None:
    """Wait until the router knows every node, and the links over which K and V will travel, but not for ever.

    The first request is placed by what has been measured then, as all later ones are.
    """
    router = next(plan.address for plan in plans if plan.role == "router")
    roles: Mapping[str, NodeRole] = {plan.child.name: cast(NodeRole, plan.role) for plan in plans if plan.engine}
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINK_SECONDS):
            await wait_until(lambda: knows_nodes(router, roles))


async def _raise_on_signal(processes: Processes, console: Console) -> NoReturn:
    loop = asyncio.get_running_loop()
    is_asked = asyncio.Event()

    def on_signal() -> None:
        if is_asked.is_set():
            processes.kill()
        is_asked.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal)
    await is_asked.wait()
    console.print("\nStopping; once more to stop at once ...")
    await processes.stop("gateway")  # while there are nodes to end its requests, or at least to tell why they did not
    raise StopRequestedError


def _say_restarts(console: Console, death: ChildDiedError) -> None:
    print_death(console, death)
    console.print(f"{death.name} is started again; requests go on where they can.", highlight=False)


def _say_checked(console: Console, what: str, finding: str) -> None:
    console.print(f"[green]✓[/] {what}: ", end="", highlight=False)
    console.print(finding, markup=False, highlight=False, soft_wrap=True)


def _find_model(model: str) -> Path:
    """Return the folder of a model, a demo's or fetched if it is a hub's and not here."""
    if model in MODELS:
        return MODELS[model]
    try:
        folder = pull(model, make_console())
    except ConfigurationError as error:
        raise ConfigurationError(f"--{error.message}") from error  # which begins with `model NAME:`
    if not (folder / "config.json").is_file():
        remedy = "give the folder that has it beside the *.safetensors files"
        raise ConfigurationError(f"--model {folder}: it has no config.json; {remedy}")
    return folder.resolve()
