"""`baton up` with parts that cannot start."""

from __future__ import annotations

import subprocess
import sys

from cli.commands import baton
from system.plan import free_ports


def test_a_part_that_cannot_start_is_named_and_all_is_stopped() -> None:
    """What nobody checks before, here a name that only the mock knows, is one line of the part: status 2."""
    ports = free_ports(["http", "grpc"])

    result = baton(
        *("up", "--prefill", "mock", "--decode", "mock"),
        *("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"])),
        environment={"BATON_DECODE_MOCK_HARDWARE": "abacus"},
    )

    assert result.returncode == 2
    assert "decode-mock cannot start: hardware: 'abacus' is unknown; expected one of" in result.stdout
    assert "INFO" not in result.stdout


def test_all_is_stopped_in_order_when_nobody_reads_the_output() -> None:
    """As when a terminal is closed, e.g. behind `baton up | head`: no traceback, status 0."""
    ports = free_ports(["http", "grpc"])
    flags = ("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"]))
    command = (sys.executable, "-m", "baton.cli", "up", "--prefill", "mock", "--decode", "mock", *flags)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if b"is healthy" in line)
        process.stdout.close()
        errors = process.stderr.read()

        assert (process.wait(120), errors) == (0, b"")
