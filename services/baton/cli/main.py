"""The entry point `baton`. Exit status: 0 done, 1 failed, 2 wrong usage or settings, 130 interrupted."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from baton import __version__
from baton.cli import chat, nodes, plan, serve, up
from baton.errors import BatonError, ConfigurationError

app = typer.Typer(
    name="baton",
    help="Serves large language models on unlike machines: prefill on one, decode on another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("up")(up.command)
app.command("serve", context_settings=serve.CONTEXT_SETTINGS)(serve.command)
app.command("chat")(chat.command)
app.command("plan")(plan.command)
app.command("nodes")(nodes.command)


@app.callback(invoke_without_command=True)
def root(
    is_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Serves large language models on unlike machines: prefill on one, decode on another."""
    if is_version:
        print(f"baton {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Run the command line and leave with its exit status."""
    try:
        app()
    except ConfigurationError as error:
        _fail(error.message, 2)
    except BatonError as error:
        _fail(error.message, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _fail(message: str, status: int) -> NoReturn:
    console = Console(stderr=True, highlight=False)
    console.print("[bold red]error:[/] ", end="")
    console.print(message, markup=False, soft_wrap=True)
    sys.exit(status)
