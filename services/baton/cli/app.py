"""The commands of `baton`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

import typer

from baton import __version__

COMMANDS = (
    "up",
    "invite",
    "join",
    "leave",
    "serve",
    "agent",
    "chat",
    "plan",
    "explain",
    "nodes",
    "doctor",
    "bench",
    "authority",
    "models",
)
"""Each is a module of this package: its `app`, or its `command` with its `CONTEXT_SETTINGS`, if it has some."""
_JOINING = ("invite", "join", "leave")
"""These are functions of one module."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line with the command that the arguments name, or with all, which take longer to import."""
    return make_app([name for name in arguments[:1] if name in COMMANDS] or COMMANDS)


def make_app(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """Return the command line with some commands."""
    app = typer.Typer(name="baton", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    app.callback(invoke_without_command=True)(_root)
    for name in names:
        if name in _JOINING:
            joining = importlib.import_module("baton.cli.joining")
            app.command(name)(getattr(joining, name))
            continue
        module = importlib.import_module(f"baton.cli.{name.replace('-', '_')}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT_SETTINGS", None))(module.command)
    return app


def _root(
    is_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Serves large language models on unlike machines: prefill on one, decode on another."""
    if is_version:
        print(f"baton {__version__}")
        raise typer.Exit
