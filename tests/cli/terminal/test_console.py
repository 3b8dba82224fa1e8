"""What `baton up` prints."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from pathlib import Path

from rich.console import Console

from baton.agent.child import ChildSpec
from baton.cli.local.launch import LocalCluster, ProcessPlan
from baton.cli.local.processes import ChildDiedError
from baton.cli.terminal.console import PrefixedLines, curl_line, print_death, processes_table


def _console(*, is_terminal: bool = False) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(
        file=stream, width=160, force_terminal=is_terminal, color_system="standard" if is_terminal else None
    ), stream


def test_lines_stand_behind_names_of_equal_width() -> None:
    """Logs of several processes can be read in columns; brackets in them are no markup."""
    console, stream = _console()
    lines = PrefixedLines(console, ["router", "decode-mock"])

    lines("router", "joined [red]node[/red]")
    lines("decode-mock", "ready")

    assert stream.getvalue() == "router      │ joined [red]node[/red]\ndecode-mock │ ready\n"


def test_a_long_line_stays_one_line() -> None:
    """Nothing is wrapped at the width of the terminal."""
    console, stream = _console()

    PrefixedLines(console, ["a"])("a", "x" * 1000)

    assert stream.getvalue().count("\n") == 1


def test_names_are_coloured_on_a_terminal() -> None:
    """Each name has its colour."""
    console, stream = _console(is_terminal=True)

    PrefixedLines(console, ["a"])("a", "ready")

    assert "\x1b[36ma" in stream.getvalue()


def test_the_table_says_what_runs_where() -> None:
    """Name, engine, device, addresses and process id of each."""
    console, stream = _console()
    plans = [
        ProcessPlan("decode", "mlx", "127.0.0.1:1", ChildSpec("decode-mlx", ())),
        ProcessPlan("gateway", "", "127.0.0.1:2", ChildSpec("gateway", ()), "http://127.0.0.1:3"),
    ]

    console.print(processes_table(plans, {"decode-mlx": "apple M3 Ultra"}, {"decode-mlx": 42, "gateway": 43}))

    text = " ".join(stream.getvalue().split())
    assert "decode-mlx mlx, apple M3 Ultra 127.0.0.1:1 42" in text
    assert "gateway - http://127.0.0.1:3 43 gRPC 127.0.0.1:2" in text


def test_the_curl_line_can_be_pasted() -> None:
    """A shell splits it into a request with a valid JSON body."""
    site = LocalCluster("127.0.0.1", 8000, 8001, Path(), "it's", "info")

    words = shlex.split(curl_line(site))

    assert words[2] == "http://127.0.0.1:8000/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "it's"


def test_the_curl_line_sends_the_users_key_where_the_gateway_asks_for_one() -> None:
    """From the environment, by the shell: a key is in no command line and no terminal."""
    site = LocalCluster("127.0.0.1", 8000, 8001, Path(), "m", "info", clients={"api_keys_file": "keys"})
    printed = subprocess.run(
        ["sh", "-c", f"curl() {{ printf '%s\\n' \"$@\"; }}; {curl_line(site)}"],
        env={"BATON_API_KEY": "sk-1"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    assert "sk-1" not in curl_line(site)
    assert "Authorization: Bearer sk-1" in printed.splitlines()


def test_a_death_is_told_with_the_last_lines() -> None:
    """Which process, how, and what it said."""
    console, stream = _console()

    print_death(console, ChildDiedError("decode-mlx", -9, ["loading [1/2]"]))

    assert "decode-mlx ended unexpectedly with signal SIGKILL." in stream.getvalue()
    assert "  loading [1/2]\n" in stream.getvalue()


def test_a_process_that_refuses_its_settings_is_told_by_what_it_says() -> None:
    """One line, without those that it logged before."""
    console, stream = _console()

    print_death(console, ChildDiedError("gateway", 2, ["INFO starting", "error: model_dir: [none]"]))

    assert stream.getvalue() == "gateway cannot start: model_dir: [none]\n"
