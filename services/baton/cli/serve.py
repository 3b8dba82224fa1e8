"""`baton serve ROLE`: runs one service in this process; its flags are the fields of its settings class."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple, NoReturn, cast

import typer
from pydantic_settings import BaseSettings
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from baton.agent.child import die_with_parent
from baton.config.settings import (
    ROLES,
    describe_settings,
    flag_help,
    groups_of,
    load_settings,
    nearest,
    parse_flags,
    process_index,
    read_file,
)
from baton.errors import ConfigurationError
from baton.installation import install_line
from baton.rpc.process import exit_on_startup_signal
from baton.security.exposure import warn_of_exposures
from baton.security.tls import TlsSettings, secured_by
from baton.telemetry.logs import LOG_FORMATS, LogFormat, configure_logging
from baton.telemetry.metrics import configure_metrics, shutdown_metrics
from baton.telemetry.metrics_server import MetricsSettings, serving_metrics
from baton.telemetry.prometheus import scraped_meter
from baton.telemetry.tracing import configure_tracing, shutdown_tracing

log = logging.getLogger(__name__)

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Lets the flags of the services through; they are not known before the role is."""

LEVELS = ("debug", "info", "warning", "error")

_ENGINE_ROLES = ("prefill", "decode", "worker")
_WORKER = "baton.worker.process"
"""Hosts each of them."""
_SWITCH_SECONDS = 2e-4
"""Longest time for which a thread of a node's Python keeps the others waiting: the engine's and those that carry KV
take turns many times within a pass, and the interpreter's own 5 ms are more than one.
"""


class Service(NamedTuple):
    """A role: its settings class and what runs it."""

    settings_class: type[BaseSettings]
    run: Callable[[BaseSettings], Awaitable[None]]


def command(context: typer.Context, role: Annotated[str, typer.Argument(help=" | ".join(ROLES))] = "") -> None:
    """Run one service; `baton serve ROLE --help` lists its flags.

    A flag wins over the environment (BATON_<ROLE>_<KEY>), that over the role's table in `--config FILE.toml`.
    """
    if role in ("", "--help", "-h"):
        print(context.get_help() if role else f"usage: baton serve {'|'.join(ROLES)} [--key value ...]")
        raise typer.Exit(0 if role else 2)
    serve_role(role, context.args)


def serve_role(role: str, arguments: Sequence[str]) -> None:
    """Run a role's service with its flags, or print them; raise ConfigurationError if role or flag is no good."""
    service = load_service(role)
    config_text, arguments = take_option(arguments, "--config")
    level, arguments = _take_level(service.settings_class, arguments)
    if any(argument in ("--help", "-h") for argument in arguments):
        _print_help(role, service.settings_class)
        return
    flags = parse_flags(service.settings_class, arguments)
    file_values = read_file(Path(config_text), role) if config_text else {}
    settings = load_settings(service.settings_class, flags, file_values, file_name=config_text)
    run_service(role, service, settings, level)


def load_service(role: str) -> Service:
    """Return a role's service, importing no other; raise ConfigurationError if it is unknown, or lacks packages."""
    if role not in ROLES:
        raise ConfigurationError(f"unknown role {role}; {nearest(role, ROLES)} Roles are {', '.join(ROLES)}")
    package = f"baton.{role.replace('-', '_')}"
    try:
        settings_module = importlib.import_module(f"{package}.settings")
        host_module = importlib.import_module(_WORKER if role in _ENGINE_ROLES else f"{package}.server")
    except ModuleNotFoundError as error:
        extra = "gateway" if role == "gateway" else "worker"
        raise ConfigurationError(f"role {role} cannot run here: {error}: {install_line(extra)}") from error
    name = "".join(part.capitalize() for part in role.split("-")) + "Settings"
    run = host_module.serve
    return Service(getattr(settings_module, name), cast(Callable[[BaseSettings], Awaitable[None]], run))


def run_service(role: str, service: Service, settings: BaseSettings, level: str) -> None:
    """Run a service, with its telemetry, until told to stop; the settings' `log_level` wins over `level`."""
    die_with_parent()
    exit_on_startup_signal()
    if role in _ENGINE_ROLES:
        sys.setswitchinterval(_SWITCH_SECONDS)
    _leave_out_unused(role, settings)
    level = str(getattr(settings, "log_level", level)).lower()
    check_level(level)
    configure_logging(_log_name(role, settings), level, log_format=wanted_log_format(os.environ))
    log.info("starting role=%s pid=%d", role, os.getpid())
    log.debug("settings %s", describe_settings(settings))
    warn_of_exposures(settings)
    configure_tracing(f"baton-{role}")
    metrics_port = settings.metrics_port if isinstance(settings, MetricsSettings) else 0
    configure_metrics(f"baton-{role}", is_scraped=metrics_port > 0)
    identity = settings.tls_identity() if isinstance(settings, TlsSettings) else None
    try:
        with secured_by(identity), _metrics_page(settings, metrics_port):
            _run(_with_certificate(settings, _many_gateways(settings, level) or service.run(settings)))
    finally:
        shutdown_metrics()
        shutdown_tracing()
    if role in _ENGINE_ROLES:
        _leave()


def _with_certificate(settings: BaseSettings, main: Awaitable[None]) -> Awaitable[None]:
    """Return what runs a service once it has the certificate that it gets by itself, if it does."""
    if not isinstance(settings, TlsSettings) or not settings.tls_enrol_address:
        return main
    from baton.rpc.enrolment import enrolled  # its packages are no part of the base installation

    return enrolled(settings, main)


@contextmanager
def _metrics_page(settings: BaseSettings, port: int) -> Iterator[None]:
    """Serve the metrics of a process that has no HTTP otherwise, if a port is set for them."""
    if not port:
        yield
        return
    with scraped_meter() as (_, scrape), serving_metrics(scrape, str(getattr(settings, "host", "127.0.0.1")), port):
        yield


def _leave_out_unused(role: str, settings: BaseSettings) -> None:
    """Have the package that others load wherever it is, and this process has no use for, count as not installed.

    It would take seconds, and 100 to 200 MB. One that is loaded already stays.
    """
    uses_torch = role != "gateway" and getattr(settings, "engine", "torch") == "torch"
    if not uses_torch or getattr(settings, "device", "") == "cpu":
        sys.modules.setdefault("triton" if uses_torch else "torch", cast(ModuleType, None))


def _leave() -> NoReturn:
    """End the process where everything of its own is closed, without the destructors of the engine's libraries.

    One of them destroys a thread that still runs now and then, and C++ then ends the process by an abort: to whoever
    supervises it a node that drained would look like one that crashed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _log_name(role: str, settings: BaseSettings) -> str:
    """Return who writes a line: the node, the role, or which of several processes of one role."""
    name = role if process_index() < 0 else f"{role}-{process_index()}"
    return str(getattr(settings, "node_id", "") or name)


def _many_gateways(settings: BaseSettings, level: str) -> Awaitable[None] | None:
    """Return what runs several processes, if this is a gateway that shall have them and not one of them."""
    if getattr(settings, "processes", 1) == 1 or process_index() >= 0:
        return None
    from baton.cli.local.gateway_processes import run_gateway_processes
    from baton.gateway.settings import GatewaySettings

    assert isinstance(settings, GatewaySettings)
    return run_gateway_processes(settings, level)


def _run(main: Awaitable[None]) -> None:
    async def run() -> None:
        await main

    try:
        import uvloop
    except ImportError:
        asyncio.run(run())
    else:
        uvloop.run(run())


def check_level(level: str) -> None:
    """Check the name of a log level; raise ConfigurationError if it is none of LEVELS."""
    if level.lower() not in LEVELS:
        raise ConfigurationError(
            f"flag --log-level (BATON_LOG_LEVEL): expected one of {', '.join(LEVELS)}, got {level}"
        )


def wanted_log_format(environment: Mapping[str, str]) -> LogFormat:
    """Return how log lines of this process look; raise ConfigurationError if BATON_LOG_FORMAT is unknown."""
    wanted = environment.get("BATON_LOG_FORMAT", "text")
    for known in LOG_FORMATS:
        if wanted == known:
            return known
    raise ConfigurationError(f"BATON_LOG_FORMAT: expected one of {', '.join(LOG_FORMATS)}, got {wanted}")


def take_option(arguments: Sequence[str], flag: str) -> tuple[str, list[str]]:
    """Return an option's value, empty if absent, and the other arguments; raise ConfigurationError if it has none."""
    remaining = list(arguments)
    for index, argument in enumerate(remaining):
        name, equals, value = argument.partition("=")
        if name != flag:
            continue
        if not equals and index + 1 == len(remaining):
            raise ConfigurationError(f"flag {flag} needs a value")
        found = value if equals else remaining[index + 1]
        del remaining[index : index + (1 if equals else 2)]
        return found, remaining
    return "", remaining


def _take_level(settings_class: type[BaseSettings], arguments: list[str]) -> tuple[str, list[str]]:
    default = os.environ.get("BATON_LOG_LEVEL", "info")
    if "log_level" in settings_class.model_fields:
        return default, arguments
    level, remaining = take_option(arguments, "--log-level")
    return level or default, remaining


def _print_help(role: str, settings_class: type[BaseSettings]) -> None:
    console = Console()
    console.print(f"baton serve {role}")
    for group in groups_of(settings_class):
        table = Table(box=None, show_header=False)
        table.add_column(no_wrap=True)
        for name in group.fields:
            line = flag_help(settings_class, name)
            value = f"{line.type_name} = {line.default}" if line.default else line.type_name
            table.add_row(line.flag, Text(f"{line.description}\n").append(value, "dim"))
        console.print(Panel(table, title=group.title, title_align="left"))
