"""The files by which systemd and launchd keep an agent running."""

from __future__ import annotations

import configparser
import plistlib
import shlex
from pathlib import Path

import pytest

from baton.agent.service_file import LAUNCHD_LABEL, service_file

COMMAND = ("/opt/my env/bin/python", "-m", "baton.cli", "agent", '--worker-arguments=--model-dir "/a 100%" $HOME')
HOME = Path("/srv/me")


def _parsed(content: bytes) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys of units have capitals
    unit.read_string(content.decode())
    return unit


@pytest.mark.parametrize("is_root", [True, False])
def test_the_unit_runs_the_very_command(is_root: bool) -> None:
    """Blanks, quotes, specifiers and variables come through; wrong settings are not tried again."""
    file = service_file("linux", COMMAND, home=HOME, is_root=is_root)

    unit = _parsed(file.content)
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(unit["Service"]["ExecStart"])]
    assert words == list(COMMAND)
    assert unit["Service"]["Restart"] == "always"
    assert unit["Service"]["RestartPreventExitStatus"] == "2"
    assert unit["Install"]["WantedBy"] == ("multi-user.target" if is_root else "default.target")
    assert str(file.path.parent) == ("/etc/systemd/system" if is_root else "/srv/me/.config/systemd/user")
    assert ("--user" in file.start_command) is not is_root


@pytest.mark.parametrize("is_root", [True, False])
def test_the_plist_runs_the_very_command(is_root: bool) -> None:
    """Launchd starts it with the session or the machine, and again when it ends."""
    file = service_file("darwin", COMMAND, home=Path("/srv/you"), is_root=is_root)

    content = plistlib.loads(file.content)
    assert content["ProgramArguments"] == list(COMMAND)
    assert content["Label"] == LAUNCHD_LABEL == file.path.stem
    assert content["RunAtLoad"] is True
    assert content["KeepAlive"] is True
    folder = "/Library/LaunchDaemons" if is_root else "/srv/you/Library/LaunchAgents"
    assert str(file.path.parent) == folder
