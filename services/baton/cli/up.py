"""`baton up`: starts all of Baton on this machine as separate processes, and stops all of it."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from baton.agent.health import is_serving
from baton.cli.chat import DEFAULT_URL
from baton.cli.cluster.gateway_client import KEY_VARIABLE
from baton.cli.cluster.router_call import DEFAULT_ROUTER
from baton.cli.local.launch import LocalCluster, ProcessPlan, plan_processes
from baton.cli.local.ports import WantedPort, check_ports_are_free
from baton.cli.local.processes import ChildDiedError, Processes
from baton.cli.local.readiness import CALL_SECONDS, devices_of, is_ready, wait_until
from baton.cli.local.topology import NodeSpec, default_topology, parse_engine, read_topology
from baton.cli.serve import check_level
from baton.cli.terminal.console import PrefixedLines, curl_line, make_console, print_death, processes_table
from baton.cli.terminal.tables import print_table
from baton.errors import ConfigurationError
from baton.telemetry.logs import configure_logging

_KEYS_FILE_VARIABLE = "BATON_GATEWAY_API_KEYS_FILE"
"""Read by the gateway, to which it is passed on."""


class StopRequestedError(Exception):
    """The user asked to stop."""


def command(
    model: Annotated[Path | None, typer.Option(help="Checkpoint folder; default: the demo model.")] = None,
    model_name: Annotated[str, typer.Option(help="Name to serve it under; default: the folder's name.")] = "",
    lora: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter in PEFT's format as NAME=FOLDER; may be repeated.")
    ] = None,
    prefill: Annotated[str, typer.Option(help="Engine of the prefill node: torch, mlx or mock.")] = "torch",
    decode: Annotated[
        str, typer.Option(help="Engine of the decode node; default: mlx where installed, else torch.")
    ] = "",
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with [\\[node]] tables, for other shapes: each has an engine and a role, which is prefill, "
            "decode or worker (both)."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address that everything binds to.", envvar="BATON_HOST")] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the REST API.", envvar="BATON_HTTP_PORT")
    ] = 8000,
    grpc_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the public gRPC API.", envvar="BATON_GRPC_PORT")
    ] = 8001,
    log_level: Annotated[str, typer.Option(help="Level of all processes.", envvar="BATON_LOG_LEVEL")] = "info",
    is_restarting: Annotated[bool, typer.Option("--restart", help="Start a part that dies again.")] = False,
    start_timeout: Annotated[float, typer.Option(help="Longest time until all are healthy, seconds.")] = 300.0,
) -> None:
    """Start everything on this machine: gateway, router, cache index, a prefill and a decode node."""
    check_level(log_level)
    configure_logging("up", log_level)
    model_dir = _check_model(model)
    specs = (
        read_topology(nodes)
        if nodes
        else default_topology(
            parse_engine(prefill, "--prefill"), parse_engine(decode or _default_decode_engine(), "--decode")
        )
    )
    name = model_name or _served_name(model, model_dir)
    needs_key = bool(os.environ.get(_KEYS_FILE_VARIABLE))
    site = LocalCluster(host, http_port, grpc_port, model_dir, name, log_level, needs_key, ",".join(lora or ()))
    check_ports_are_free(
        host,
        (
            WantedPort(http_port, "HTTP", "--http-port or BATON_HTTP_PORT"),
            WantedPort(grpc_port, "gRPC", "--grpc-port or BATON_GRPC_PORT"),
        ),
    )
    raise typer.Exit(asyncio.run(run_up(site, specs, make_console(), is_restarting, start_timeout)))


async def run_up(
    site: LocalCluster, specs: Sequence[NodeSpec], console: Console, is_restarting: bool, start_timeout_seconds: float
) -> int:
    """Start the processes, say when they are healthy, run until stopped; return the exit status."""
    plans = plan_processes(site, specs)
    lines = PrefixedLines(console, [plan.child.name for plan in plans])
    processes = Processes([plan.child for plan in plans], lines, is_restarting=is_restarting)
    status = 0
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(processes.run())
            group.create_task(_announce(site, plans, processes, console, start_timeout_seconds))
            group.create_task(_raise_on_signal(processes, console))
    except* StopRequestedError:
        console.print("[bold]Baton is down.[/]")
    except* ChildDiedError as deaths:
        for death in deaths.exceptions:
            if isinstance(death, ChildDiedError):
                print_death(console, death)
        status = 1
    except* TimeoutError:
        console.print(f"[bold red]Not healthy within {start_timeout_seconds:.0f} s; everything was stopped.[/]")
        status = 1
    return status


async def _announce(
    site: LocalCluster, plans: Sequence[ProcessPlan], processes: Processes, console: Console, timeout_seconds: float
) -> None:
    async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as group:
        for plan in plans:
            group.create_task(_announce_one(site, plan, console))
    router = next(plan.address for plan in plans if plan.role == "router")
    devices = await devices_of(router)
    process_ids = {plan.child.name: processes.process_id(plan.child.name) for plan in plans}
    print_table(console, processes_table(plans, devices, process_ids))
    if site.needs_key:
        console.print(f"The gateway asks for API keys: put one of them into [bold]{KEY_VARIABLE}[/].\n")
    console.print("Ask it something:\n")
    console.print(f"  {curl_line(site)}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(f"open [bold]{site.url}/ui[/] in a browser,", highlight=False)
    console.print(f"or run [bold]{_chat_line(site)}[/]; [bold]{_nodes_line(router)}[/] shows what the router knows.")
    console.print("Ctrl-C stops everything.\n")


async def _announce_one(site: LocalCluster, plan: ProcessPlan, console: Console) -> None:
    await wait_until(lambda: is_serving(plan.address, CALL_SECONDS))
    if plan.role == "gateway":
        await wait_until(lambda: is_ready(site.host, site.http_port))
    console.print(f"[green]✓[/] {plan.child.name} is healthy on {plan.address}", highlight=False)


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
    raise StopRequestedError


def _chat_line(site: LocalCluster) -> str:
    return "baton chat" if site.url == DEFAULT_URL else f"baton chat --url {site.url}"


def _nodes_line(router: str) -> str:
    return "baton nodes" if router == DEFAULT_ROUTER else f"baton nodes --router {router}"


def _check_model(model: Path | None) -> Path:
    if model is None:
        from baton.demo import checkpoint_dir

        model = checkpoint_dir()
    if not (model / "config.json").is_file():
        raise ConfigurationError(f"--model: {model} is no checkpoint folder (it has no config.json)")
    return model.resolve()


def _served_name(model: Path | None, model_dir: Path) -> str:
    return model_dir.name if model else "baton-demo"


def _default_decode_engine() -> str:
    return "mlx" if importlib.util.find_spec("mlx_lm") and importlib.util.find_spec("mlx.core") else "torch"
