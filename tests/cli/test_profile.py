"""`baton profile`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from baton.agent.machine_lock import machine_used_for
from baton.capacity.hardware import MachineProfile, MeasuredRate
from baton.cli.app import make_app
from baton.cli.profile import kept_profile, profile_table
from baton.errors import UnavailableError

RATE = MeasuredRate(2e9, 0.031, 7)
PROFILE = MachineProfile(
    *("here", "cpu", "torch", "2026-11-21T00:00:00+00:00", {"float32": RATE}, RATE, RATE, RATE, RATE, 3, 2, 1)
)


def test_a_kept_profile_is_printed_and_nothing_is_measured(tmp_path: Path) -> None:
    """Also while a worker serves; to measure anew is then refused."""
    (tmp_path / "profile.json").write_text(PROFILE.as_json())
    with machine_used_for("serving", tmp_path):
        kept = CliRunner().invoke(make_app(), ["profile", "--state-dir", str(tmp_path), "--json"])
        again = CliRunner().invoke(make_app(), ["profile", "--state-dir", str(tmp_path), "--again"])

    assert kept.output.strip() == PROFILE.as_json()
    with pytest.raises(UnavailableError, match="a worker serves"):
        raise again.exception or AssertionError


def test_every_figure_has_its_spread() -> None:
    """One row each."""
    table = profile_table(PROFILE)

    cells = list(zip(*(column.cells for column in table.columns), strict=True))
    assert cells[0] == ("matmul float32", "2 GFLOP/s", "3.1%", "7")
    assert len(cells) == 5


def test_a_file_that_is_no_profile_is_as_good_as_none(tmp_path: Path) -> None:
    """It is measured again then."""
    (tmp_path / "profile.json").write_text("{")

    assert kept_profile(tmp_path / "profile.json") is None
