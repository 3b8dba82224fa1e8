"""`baton agent install` and `baton agent status`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.cli.app import make_app
from baton.cli.cluster.agent_status import sensor_rows, status_table
from baton.errors import ConfigurationError, UnavailableError
from baton.internal.v1 import agent_service_pb2
from baton.internal.v1.node_pb2 import SystemSample


def test_a_dry_run_prints_the_service_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token stands in neither."""
    monkeypatch.setenv("HOME", str(tmp_path))
    done = CliRunner().invoke(
        make_app(),
        ["agent", "install", "--dry-run", "--join-token", "sesame", "--state-dir", str(tmp_path / "s"), "--port=9"],
    )

    assert done.exit_code == 0, done.output
    assert "baton.cli" in done.output
    assert "--port=9" in done.output
    assert f"--join-token-file={tmp_path}/s/join.token" in done.output
    assert "sesame" not in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--join-token=sesame", "--join-token-file=given"])
def test_an_installed_service_keeps_its_token_to_itself(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token's file is for its owner alone, and where the service finds it from any folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").write_text("sesame\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    done = CliRunner().invoke(make_app(), ["agent", "install", flag, "--state-dir", str(tmp_path / "state")])

    token = tmp_path / "state" / "join.token"
    (service,) = [path for path in tmp_path.rglob("*aton*agent*") if path.is_file()]
    assert done.exit_code == 0, done.output
    assert token.read_text() == "sesame"
    assert token.stat().st_mode & 0o077 == 0
    assert b"sesame" not in service.read_bytes()
    assert f"--join-token-file={token}".encode() in service.read_bytes()


def test_flags_are_checked_before_anything_is_written() -> None:
    """The message names the flag."""
    done = CliRunner().invoke(make_app(), ["agent", "install", "--dry-run", "--wroker-role", "decode"])

    with pytest.raises(ConfigurationError, match="--wroker-role"):
        raise done.exception or AssertionError


def test_the_status_of_an_agent_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """The message names the address."""
    done = CliRunner().invoke(make_app(), ["agent", "status", "--address", "127.0.0.1:1", "--state-dir", str(tmp_path)])

    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        raise done.exception or AssertionError


def test_the_status_says_what_there_is() -> None:
    """Sensors that the machine lacks have no row."""
    status = agent_service_pb2.GetStatusResponse(
        node_id="mac-1", worker_state=agent_service_pb2.WORKER_STATE_BACKING_OFF, restart_count=2, last_exit_status=-9
    )
    sample = SystemSample(power_watts=31.25, performance_cpu_usage=0.5, memory_byte_count=16 << 30)

    table = status_table(status, sample)

    cells = dict(zip(*(column.cells for column in table.columns), strict=True))
    assert (cells["worker"], cells["last exit"], cells["power"]) == ("backing off, pid -", "-9", "31.2 W")
    assert [name for name, _ in sensor_rows(sample)] == ["power", "CPU in use", "memory"]
    assert sensor_rows(None) == []


def test_a_machine_that_cannot_measure_power_says_so() -> None:
    """With what it would take, rather than with a zero."""
    rows = dict(sensor_rows(SystemSample(performance_cpu_usage=0.5)))

    assert rows["power"].startswith("not measured: ")


def test_parts_of_a_chip_have_their_power() -> None:
    """Accelerator and neural engine stand apart, also where one is idle."""
    rows = dict(sensor_rows(SystemSample(power_watts=31, gpu_power_watts=22.5, ane_power_watts=0)))

    assert (rows["power"], rows["GPU power"], rows["neural engine power"]) == ("31.0 W", "22.5 W", "0.0 W")
