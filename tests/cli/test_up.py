"""`baton up` with parts that cannot start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli.commands import baton
from system.plan import free_ports


def test_a_part_that_cannot_start_is_named_and_all_is_stopped(tmp_path: Path) -> None:
    """A model folder without anything in it fails in a worker or the gateway: status 1, its name and its last line."""
    (tmp_path / "config.json").write_text("{}")
    ports = free_ports(["http", "grpc"])

    result = baton(
        *("up", "--model", str(tmp_path), "--prefill", "mock", "--decode", "mock"),
        *("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"])),
    )

    assert result.returncode == 1
    assert "ended unexpectedly with exit status" in result.stdout
    assert "Its last lines:" in result.stdout


def test_all_is_stopped_in_order_when_nobody_reads_the_output() -> None:
    """As when a terminal is closed, e.g. behind `baton up | head`: no traceback, status 0."""
    ports = free_ports(["http", "grpc"])
    flags = ("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"]))
    command = (sys.executable, "-m", "baton.cli", "up", "--prefill", "mock", "--decode", "mock", *flags)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()

        assert (process.wait(120), errors) == (0, b"")
