"""Exit statuses of the command line."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from baton import __version__
from baton.cli.app import COMMANDS
from cli.commands import baton


def test_the_version_is_printed() -> None:
    """`baton --version` is one line."""
    result = baton("--version")

    assert (result.returncode, result.stdout) == (0, f"baton {__version__}\n")


def test_help_names_every_command() -> None:
    """With what each does; a wrong command is told from those that there are."""
    listed, wrong = baton("--help"), baton("srve")

    assert listed.returncode == 0
    assert all(any(line.split()[1:2] == [name] for line in listed.stdout.splitlines()) for name in COMMANDS)
    assert wrong.returncode == 2
    assert "serve" in wrong.stderr


def test_a_command_loads_no_other_commands() -> None:
    """A cluster starts many processes, and each would spend a second on it."""
    program = "import sys; from baton.cli.app import app_for; app_for(['serve', 'router']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)

    loaded = {name for name in done.stdout.split() if name.startswith("baton.cli.")}
    assert loaded == {"baton.cli.app", "baton.cli.serve"}


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["serve", "rooter"], "rooter"),
        (["serve", "router", "--prot", "1"], "--prot"),
        (["serve", "router", "--port", "many"], "--port"),
        (["serve", "router", "--log-level", "loud"], "--log-level"),
        (["serve", "router", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (["serve", "prefill"], "--model-dir"),
        (["up", "--model", "/nonexistent"], "--model"),
        (["up", "--prefill", "jax"], "--prefill"),
        (["up", "--http-port", "65536"], "--http-port"),
        (["up", "--grpc-port", "0"], "--grpc-port"),
        (["up", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_wrong_usage_is_status_2_and_names_the_key(arguments: list[str], key: str, tmp_path: Path) -> None:
    """The message is one line without a traceback."""
    if arguments[0] == "up" and "--model" not in arguments:
        (tmp_path / "config.json").write_text("{}")
        arguments = [*arguments, "--model", str(tmp_path)]

    result = baton(*arguments)

    assert result.returncode == 2
    assert key in result.stderr
    assert "Traceback" not in result.stderr


def test_a_wrong_environment_variable_is_named() -> None:
    """Status 2, and the variable as the user set it."""
    result = baton("serve", "router", environment={"BATON_ROUTER_PORT": "many"})

    assert result.returncode == 2
    assert "BATON_ROUTER_PORT" in result.stderr


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path) -> None:
    """The number and the flag are named; no process has been started."""
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        result = baton("up", "--model", str(tmp_path), "--http-port", str(port))

    assert result.returncode == 2
    assert f"port {port} (HTTP)" in result.stderr
    assert result.stdout == ""


def test_help_of_a_role_lists_its_flags() -> None:
    """Without running anything."""
    result = baton("serve", "router", "--help")

    assert result.returncode == 0
    assert "--cache-index-address" in result.stdout


def test_an_unreachable_service_is_status_1() -> None:
    """The address is named."""
    result = baton("nodes", "--router", "127.0.0.1:1")

    assert result.returncode == 1
    assert "router at 127.0.0.1:1" in result.stderr
    assert "is `baton up` running there?" in result.stderr
