"""The commands of `baton`."""

from __future__ import annotations

from typing import Annotated

import typer

from baton import __version__
from baton.cli import agent, authority, bench, chat, doctor, fetch, kv_link, nodes, plan, profile, serve, simulate, up

app = typer.Typer(
    name="baton",
    help="Serves large language models on unlike machines: prefill on one, decode on another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("up")(up.command)
app.command("serve", context_settings=serve.CONTEXT_SETTINGS)(serve.command)
app.command("agent", context_settings=agent.CONTEXT_SETTINGS)(agent.command)
app.command("chat")(chat.command)
app.command("plan")(plan.command)
app.command("profile")(profile.command)
app.command("nodes")(nodes.command)
app.command("doctor")(doctor.command)
app.command("simulate")(simulate.command)
app.add_typer(bench.app, name="bench")
app.add_typer(kv_link.app, name="kv-link")
app.add_typer(authority.app, name="authority")
app.command("fetch")(fetch.command)


@app.callback(invoke_without_command=True)
def root(
    is_version: Annotated[bool, typer.Option("--version", help="Print the version and leave.", is_eager=True)] = False,
) -> None:
    """Serves large language models on unlike machines: prefill on one, decode on another."""
    if is_version:
        print(f"baton {__version__}")
        raise typer.Exit
