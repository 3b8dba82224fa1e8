"""`baton join`, `baton leave` and `baton invite`, as far as they go without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.agent.membership import Membership
from baton.agent.running_agent import running_agent
from baton.cli import joining
from baton.cli.app import make_app
from baton.errors import ConfigurationError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from system.plan import free_ports


def told(*arguments: str) -> str:
    """Return the error with which a command ends."""
    error = CliRunner().invoke(make_app(), list(arguments)).exception
    assert isinstance(error, ConfigurationError | UnavailableError), error
    return error.message


def member(folder: Path) -> Membership:
    """Return what a machine that has joined keeps."""
    membership = Membership(folder, "baton")
    membership.key()
    membership.keep(messages.JoinResponse(certificate=b"c", authorities=b"a"), "10.0.0.1:8013")
    return membership


def test_a_slip_is_told_before_anybody_is_asked(tmp_path: Path) -> None:
    """So is a machine that has joined, or whose agent runs."""
    free, taken = tmp_path / "free", tmp_path / "taken"
    member(taken)

    assert "'orbitt' is no word of a code; did you mean orbit" in told(
        "join", "7-orbitt-able-able", f"--state-dir={free}"
    )
    assert told("join", "7-able-able-able", f"--state-dir={taken}").startswith(
        "this machine has joined 10.0.0.1:8013 already: `baton join` without a code goes on there"
    )
    with running_agent(free):
        assert "has joined already" in told("join", "7-able-able-able", f"--state-dir={free}")


def test_a_machine_goes_on_without_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the flags that it joined with; one that has not joined needs a code."""
    told_flags: list[object] = []
    monkeypatch.setattr(joining, "_work", lambda flags, **_: told_flags.append(flags))
    assert "has joined nothing yet: give the code" in told("join", f"--state-dir={tmp_path}")
    member(tmp_path).keep_flags(["--host=10.0.0.2", "--worker-arguments=--engine mlx"])

    assert CliRunner().invoke(make_app(), ["join", f"--state-dir={tmp_path}"]).exit_code == 0

    assert told_flags == [["--host=10.0.0.2", "--worker-arguments=--engine mlx"]]


def test_who_leaves_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, certificate and answer are gone; other files of the folder stay."""
    monkeypatch.setenv("HOME", str(tmp_path))
    membership = member(tmp_path)
    (tmp_path / "profile.json").touch()

    result = CliRunner().invoke(make_app(), ["leave", f"--state-dir={tmp_path}"])

    assert result.exit_code == 0, result.output
    assert not membership.has_joined
    assert not membership.identity.key_file.exists()
    assert (tmp_path / "profile.json").exists()
    assert "has joined nothing" in told("leave", f"--state-dir={tmp_path}")


def test_a_router_that_cannot_be_reached_is_named_with_the_remedy() -> None:
    """Before the machine works, so that it does not wait for ever."""
    port = free_ports(["closed"])["closed"]

    with pytest.raises(
        UnavailableError, match=rf"router_address 127\.0\.0\.1:{port} is blocked .*sudo ufw allow {port}"
    ):
        joining._check_reachable({"router_address": f"127.0.0.1:{port}"})


def test_a_battery_has_a_lid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed one is told before it happens."""
    monkeypatch.setattr("psutil.sensors_battery", lambda: None)
    assert joining._lid_advice() == ""
    monkeypatch.setattr("psutil.sensors_battery", lambda: 1)
    assert joining._lid_advice().startswith("a closed lid sends this machine to sleep")
