"""`baton profile`: what this machine can do, measured once and kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from baton.agent.machine_lock import machine_used_for
from baton.agent.server import PROFILE_NAME
from baton.agent.settings import DEFAULT_STATE_DIR
from baton.capacity.hardware import MachineProfile, MeasuredRate, read_profile
from baton.cli.terminal.console import make_console
from baton.cli.terminal.tables import format_bytes, format_rate, print_table


def command(
    is_again: Annotated[bool, typer.Option("--again", help="Measure anew although there is a profile.")] = False,
    engine: Annotated[str, typer.Option(help="auto, torch or mlx: what to measure by.")] = "auto",
    state_dir: Annotated[Path, typer.Option(help="Where the profile is kept.")] = DEFAULT_STATE_DIR,
    is_json: Annotated[bool, typer.Option("--json", help="Print the profile as a document.")] = False,
) -> None:
    """Print what this machine can do: products, memory and disk; `baton nodes` has the links that nodes measure.

    Measured once, and kept with its date; not while a worker serves, which it would disturb and be disturbed by.
    """
    path = state_dir.expanduser() / PROFILE_NAME
    profile = None if is_again else kept_profile(path)
    if profile is None or engine not in ("auto", profile.engine):
        profile = _measured(path, engine)
    if is_json:
        print(profile.as_json())
        return
    console = make_console()
    print_table(console, profile_table(profile))
    console.print(
        f"{profile.machine}; {profile.device}, by {profile.engine}; measured {profile.measured_at}.", highlight=False
    )
    console.print(
        f"Memory {format_bytes(profile.memory_bytes)}, usable {format_bytes(profile.usable_memory_bytes)}; "
        f"disk {format_bytes(profile.free_disk_bytes)} free.",
        highlight=False,
    )


def kept_profile(path: Path) -> MachineProfile | None:
    """Return the profile in a file; None where there is none that can be read."""
    try:
        return read_profile(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


def profile_table(profile: MachineProfile) -> Table:
    """Return one row per figure, with its spread: the distance of the quartiles as a share of the median."""
    table = Table("what", "median", "spread", "runs", box=box.SIMPLE_HEAD, pad_edge=False)
    for dtype, rate in profile.matmul_flops.items():
        _add(table, f"matmul {dtype}", rate, "FLOP/s")
    _add(table, "memory read", profile.memory_read_bytes_per_second, "B/s")
    _add(table, "memory copy", profile.memory_copy_bytes_per_second, "B/s")
    _add(table, "disk read", profile.disk_read_bytes_per_second, "B/s")
    _add(table, "disk write", profile.disk_write_bytes_per_second, "B/s")
    return table


def _add(table: Table, what: str, rate: MeasuredRate, unit: str) -> None:
    table.add_row(what, format_rate(rate.median, unit), f"{rate.spread:.1%}", str(rate.num_runs))


def _measured(path: Path, engine: str) -> MachineProfile:
    from baton.node.profiling.machine import measure_machine, open_yardstick  # brings a framework

    with machine_used_for("measuring", path.parent):
        profile = measure_machine(open_yardstick(engine), path.parent)
    _keep(path, profile)
    return profile


def _keep(path: Path, profile: MachineProfile) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(profile.as_json(), "utf-8")
    temporary.replace(path)
