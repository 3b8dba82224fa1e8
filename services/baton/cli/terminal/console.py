"""What `baton up` prints: prefixed log lines, the table of processes, the command to paste, the obituary."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.cli.cluster.gateway_client import KEY_VARIABLE
from baton.cli.local.launch import LocalCluster, ProcessPlan
from baton.cli.local.processes import MISCONFIGURED, ChildDiedError

_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
_REFUSAL = "error: "
"""Begins the last line of a process that cannot start with its settings."""
EXAMPLE_QUESTION = "What is 12 + 30?"
"""A question that the demo model can answer."""


PIPE_WIDTH = 180
"""Columns where the output is no terminal and COLUMNS is not set."""


def make_console() -> Console:
    """Return a console on stdout, wide enough for tables where that is no terminal."""
    is_narrow = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return _PipeConsole(width=PIPE_WIDTH if is_narrow else None)


class _PipeConsole(Console):
    """Treats a reader that has gone like a terminal that was closed: `baton up` stops in order, others end."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # what is still buffered goes nowhere
        os.close(null)
        signal.raise_signal(signal.SIGHUP)


class PrefixedLines:
    """Prints the lines of children behind their names, each name in its colour, all names equally wide."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._width = max(map(len, names), default=0)
        self._colors = {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}

    def __call__(self, name: str, line: str) -> None:
        """Print one line of a child."""
        prefix = Text(f"{name:<{self._width}} │ ", style=self._colors.get(name, "white"))
        line = line.replace(f" {name:<11} ", " ", 1)  # the child's own name for itself: the prefix says it already
        self._console.print(prefix.append(Text.from_ansi(line, style="default")), soft_wrap=True)


def processes_table(plans: Sequence[ProcessPlan], devices: Mapping[str, str], process_ids: Mapping[str, int]) -> Table:
    """Return what runs where, one row per process."""
    table = Table(
        *("process", "engine, device", "address"),
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        title="Baton is up",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("pid", justify="right")
    for plan in plans:
        name = plan.child.name
        device = ", ".join(filter(None, (plan.engine, devices.get(name, "")))) or "-"
        table.add_row(name, device, plan.shown_address, str(process_ids.get(name) or "-"))
    return table


def curl_line(site: LocalCluster) -> str:
    """Return a command to paste that asks the served model a question, with the key of the user's environment.

    It believes the served certificate, which does as it is where that is its own authority and names the host.
    """
    body = {
        "model": site.model_name,
        "messages": [{"role": "user", "content": EXAMPLE_QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
    }
    key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if site.needs_key else ""
    headers = f"-H 'Content-Type: application/json'{key}"
    trust = f" --cacert {shlex.quote(site.https_cert_file)}" if site.https_cert_file else ""
    trust += " --cert YOURS.crt --key YOURS.key" if "client_ca_file" in site.clients else ""
    return f"curl -s{trust} {site.url}/v1/chat/completions {headers} -d {shlex.quote(json.dumps(body))}"


def print_death(console: Console, death: ChildDiedError) -> None:
    """Print which process died, how, and its last words; of one that refuses its settings, only what is wrong."""
    if death.status == MISCONFIGURED and death.last_lines and death.last_lines[-1].startswith(_REFUSAL):
        console.print(f"[bold red]{death.name} cannot start:[/] ", end="")
        console.print(death.last_lines[-1].removeprefix(_REFUSAL), markup=False, highlight=False, soft_wrap=True)
        return
    console.print(f"[bold red]{death.message}.[/] Its last lines:")
    for line in death.last_lines or ("(it wrote nothing)",):
        console.print(Text.from_ansi(f"  {line}"), soft_wrap=True)
