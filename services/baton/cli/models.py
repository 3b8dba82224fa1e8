"""`baton models`: brings models of a hub to this machine, and lists those that are here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from baton.cli.cluster import model_orders
from baton.cli.cluster.router_call import DEFAULT_ROUTER, CommandTlsSettings, RouterOption
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, print_table
from baton.config.settings import load_settings
from baton.errors import BatonError, ConfigurationError
from baton.security.tls import current_identity, secured_by
from baton.weight_transfer.fetcher import bring_model
from baton.weights.hub import FetchProgress, cached_models, model_folder
from baton.weights.store import default_store

app = typer.Typer(no_args_is_help=True, help="Models: on this machine, and those that a deployment serves.")
app.command("load")(model_orders.load)
app.command("unload")(model_orders.unload)
app.command("pin")(model_orders.pin)


@app.command("pull")
def pull_command(
    model: Annotated[str, typer.Argument(help="org/name\\[@revision]; HF_TOKEN opens gated ones.")],
    source: Annotated[
        list[str] | None,
        typer.Option("--from", help="host:port of a node or agent that has it, or is getting it; may be repeated."),
    ] = None,
) -> None:
    """Fetch what is not here of a model, and print its folder."""
    print(pull(model, Console(stderr=True), source or ()))


@app.command("remove")
def remove_command(model: Annotated[str, typer.Argument(help="name\\[@revision], as `list` has it.")]) -> None:
    """Forget a model of this machine's store, and delete what no other one needs of it."""
    store = default_store()
    if not store.remove(model):
        raise ConfigurationError(f"model {model}: it is not in the store {store.folder}; `baton models list` has all")
    print(f"{format_bytes(store.collect())} deleted in {store.folder}")


@app.command("list")
def list_command(router: RouterOption = DEFAULT_ROUTER) -> None:
    """Print the models of the deployment, if its router answers, and those in the hub's cache of this machine."""
    with suppress(BatonError):
        model_orders.print_models(model_orders.listed(router).models)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("model", "commit", "size", "folder"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    models = cached_models()
    for model in models:
        table.add_row(model.name.repository, model.name.revision[:12], format_bytes(model.num_bytes), str(model.folder))
    if not models:
        print("The hub's cache of this machine is empty; `baton models pull org/name` brings a model.")
        return
    print_table(make_console(), table)


@app.command("digest")
def digest_command(
    model: Annotated[str, typer.Argument(help="A folder, or org/name\\[@revision].")],
    *,
    is_full: Annotated[bool, typer.Option("--full", help="Read every weight, not some rows of each tensor.")] = False,
) -> None:
    """Print the digest of what a model computes: equal digests are the same model, in whatever container."""
    from baton.engine.checkpoint.model_folder import read_checkpoint  # takes as long to import as all else here

    print(read_checkpoint(pull(model, Console(stderr=True))).weights_digest(is_full=is_full))


def pull(model: str, console: Console, sources: Sequence[str] = ()) -> Path:
    """Return a model's folder, fetched from machines or a hub if need be; raise ConfigurationError if it is nowhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(model, total=None, visible=False)
        fetched: list[FetchProgress] = []

        def show(progress: FetchProgress) -> None:
            fetched.append(progress)
            is_new = progress.done_bytes < progress.total_bytes or len(fetched) > 1
            bar.update(task, total=progress.total_bytes, completed=progress.done_bytes, visible=is_new)

        if sources:
            with secured_by(current_identity() or load_settings(CommandTlsSettings, {}).tls_identity()):
                folder = asyncio.run(bring_model(model, sources, show))
        else:
            folder = model_folder(model, show)
    if len(fetched) > 1:
        console.print(
            f"[green]✓[/] fetched {fetched[-1].name}: {format_bytes(fetched[-1].total_bytes)}", highlight=False
        )
    return folder
