"""`baton up` with parts that cannot start."""

from __future__ import annotations

from pathlib import Path

from baton.cli.ports import free_ports
from cli.commands import baton


def test_a_part_that_cannot_start_is_named_and_all_is_stopped(tmp_path: Path) -> None:
    """A model folder without anything in it fails in a worker or the gateway: status 1, its name and its last line."""
    (tmp_path / "config.json").write_text("{}")
    ports = free_ports("127.0.0.1", ["http", "grpc"], {})

    result = baton(
        *("up", "--model", str(tmp_path), "--prefill", "mock", "--decode", "mock"),
        *("--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"])),
    )

    assert result.returncode == 1
    assert "ended unexpectedly with exit status" in result.stdout
    assert "Its last lines:" in result.stdout
