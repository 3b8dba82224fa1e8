"""`baton agent`: runs the agent of this machine; `install` makes it a service, `status` asks it how things are."""

from __future__ import annotations

import typer

from baton.cli import serve

CONTEXT_SETTINGS = serve.CONTEXT_SETTINGS


def command(context: typer.Context) -> None:
    """Run this machine's agent, as `baton serve agent` does; `baton agent --help` lists its flags.

    A machine joins a deployment with `baton agent --join-token TOKEN`.
    """
    serve.serve_role("agent", context.args)
