"""The entry point `baton`. Exit status: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted."""

from __future__ import annotations

import difflib
import os
import sys
from typing import NoReturn

import typer

from baton.errors import BatonError, ConfigurationError


def main() -> NoReturn:
    """Run the command line and leave with its exit status."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what its library logs of a connection, Python is told as well
    try:
        from baton.cli.app import app_for  # here, so that Ctrl-C while it loads ends like any other

        status = app_for(sys.argv[1:])(prog_name="baton", standalone_mode=False)
    except ConfigurationError as error:
        _fail(error.message, 2)
    except BatonError as error:
        _fail(error.message, 1)
    except typer.TyperException as error:
        _refuse(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


def _refuse(error: typer.TyperException) -> NoReturn:
    """Say in a line what is wrong with a command line, or print the help that stands for it."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    context, message = getattr(error, "ctx", None), error.format_message().rstrip(".")
    if possible := difflib.get_close_matches(
        getattr(error, "option_name", ""), getattr(error, "possibilities", None) or ()
    ):
        message = f"{getattr(error, 'message', message)}; did you mean {possible[0]}?"
    help_line = f"`{context.command_path} --help` lists what it takes" if context else ""
    _fail(f"{message}{' ' if message.endswith('?') else '; '}{help_line}", 2)


def _fail(message: str, status: int) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print("[bold red]error:[/] ", end="")
    console.print(message, markup=False, soft_wrap=True)
    sys.exit(status)
