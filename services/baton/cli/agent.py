"""`baton agent`: runs the agent of this machine; `install` makes it a service, `status` asks it how things are."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from baton.agent.service_file import Platform, ServiceFile, service_file
from baton.agent.settings import AgentSettings
from baton.cli import serve
from baton.cli.cluster import agent_status
from baton.config.settings import load_settings, parse_flags
from baton.errors import ConfigurationError

CONTEXT_SETTINGS = serve.CONTEXT_SETTINGS
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

_PLATFORMS: Mapping[str, Platform] = {"linux": "linux", "darwin": "darwin"}

_actions = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_actions.command("status")(agent_status.command)


def command(context: typer.Context) -> None:
    """Run this machine's agent, as `baton serve agent` does; `baton agent --help` lists its flags.

    `baton agent --join-token TOKEN` joins a deployment. `baton agent install FLAGS...` has systemd or launchd run it
    with these flags, `baton agent status` asks a running one.
    """
    if context.args[:1] in (["install"], ["status"]):
        _actions(context.args, prog_name="baton agent", standalone_mode=False)
        return
    serve.serve_role("agent", context.args)


@_actions.command("install", context_settings=_PASSED_ON)
def install(
    context: typer.Context,
    is_dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be written.")] = False,
) -> None:
    """Write the systemd unit (Linux) or launchd plist (macOS) of an agent with the flags that follow.

    A join token is kept in a file of the state folder, not in the service's file, which others may read.
    """
    settings = load_settings(AgentSettings, parse_flags(AgentSettings, context.args))
    token = settings.read_join_token()
    token_file = settings.state_folder / "join.token"
    flags = list(context.args)
    if token:
        for flag in ("--join-token", "--join-token-file"):
            _, flags = serve.take_option(flags, flag)
        flags.append(f"--join-token-file={token_file}")
    found = installed_service(flags)
    if is_dry_run:
        print(f"# {found.path}\n{found.content.decode('utf-8')}# {shlex.join(found.start_command)}")
        return
    if token:
        from baton.security.authority import write_private  # its packages are no part of the base installation

        write_private(token_file, token.encode())
    write_service(found)


def write_service(found: ServiceFile) -> None:
    """Write a service's file, and say what starts it; raise ConfigurationError if it cannot be written."""
    try:
        found.path.parent.mkdir(parents=True, exist_ok=True)
        found.path.write_bytes(found.content)
    except OSError as error:
        raise ConfigurationError(f"cannot write {found.path}: {error.strerror}") from error
    print(f"{found.path} is written; start it with: {shlex.join(found.start_command)}")


def installed_service(flags: Sequence[str]) -> ServiceFile:
    """Return the service of an agent with these flags for this user; raise ConfigurationError on other systems."""
    command_line = (sys.executable, "-m", "baton.cli", "agent", *flags)
    platform = _PLATFORMS.get(sys.platform)
    if platform is None:
        raise ConfigurationError(f"{sys.platform} has neither systemd nor launchd")
    return service_file(platform, command_line, home=Path.home(), is_root=os.geteuid() == 0)
