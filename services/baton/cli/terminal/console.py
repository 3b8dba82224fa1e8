"""What `baton up` prints: prefixed log lines, the table of processes, the command to paste, the obituary."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from baton.agent.child import OnLine
from baton.cli.cluster.gateway_client import KEY_VARIABLE
from baton.cli.local.launch import LocalCluster, ProcessPlan
from baton.cli.local.processes import MISCONFIGURED, ChildDiedError
from baton.config.memory_budget import told

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
        address = f"{plan.http_url}\ngRPC {plan.address}" if plan.http_url else plan.address
        table.add_row(name, device, address, str(process_ids.get(name) or "-"))
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


_RECORD = re.compile(r'^\S+Z (?P<level>[A-Z]+) +\S+ +(?P<event>[a-z_]+)|^\{.*?"level": "(?P<json_level>\w+)"')
"""A line of a child that is a log record, as text or as JSON; tracebacks and what libraries print are none."""
_SHOWN_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_LARGE_BYTES = 1 << 30
"""Weights beyond this take so long that their bytes are counted."""


class QuietLines:
    """Hands on what children warn of, with the tracebacks behind it, and keeps the rest to itself."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._is_shown: dict[str, bool] = {}
        self.events: dict[str, str] = {}
        """What each child logged last, in words."""

    def __call__(self, name: str, line: str) -> None:
        """Take a line of a child."""
        if record := _RECORD.match(line):
            level = record["level"] or record["json_level"].upper()
            self._is_shown[name] = level in _SHOWN_LEVELS
            self.events[name] = (record["event"] or "").replace("_", " ")
        if self._is_shown.get(name, False):
            self._on_line(name, line)


class StartingLine:
    """A line that says who is still starting, for how long, and how far it is; it changes as it is shown.

    `weight_bytes` has those that a process loads into main memory; `process_id` returns 0 where one does not run.
    """

    def __init__(
        self,
        names: Sequence[str],
        events: Mapping[str, str],
        weight_bytes: Mapping[str, int],
        process_id: Callable[[str], int],
    ) -> None:
        self._waiting = list(names)
        self._events, self._weight_bytes = events, weight_bytes
        self._process_id = process_id
        self._began_seconds = time.monotonic()

    def finish(self, name: str) -> None:
        """Leave a process out: it has started."""
        self._waiting.remove(name)

    def __rich__(self) -> Text:
        """Return the line as it is now, cut where the terminal ends."""
        seconds = time.monotonic() - self._began_seconds
        parts = [f"{name} ({self._progress(name)})" for name in self._waiting]
        return Text(f"{seconds:.0f} s, waiting for {', '.join(parts)}", style="dim", overflow="ellipsis", no_wrap=True)

    def _progress(self, name: str) -> str:
        event, size = self._events.get(name, "starts"), self._weight_bytes.get(name, 0)
        if size < _LARGE_BYTES or event == "model loaded":
            return event
        try:
            resident = psutil.Process(self._process_id(name)).memory_info().rss
        except psutil.Error:
            return event
        return f"{told(resident)} of {told(size)}"
