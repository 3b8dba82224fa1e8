"""The files by which systemd and launchd keep an agent running."""

from __future__ import annotations

import plistlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Platform = Literal["linux", "darwin"]

LAUNCHD_LABEL = "dev.baton.agent"
_UNIT_NAME = "baton-agent.service"
_STOP_SECONDS = 45


class ServiceFile(NamedTuple):
    """What to write, and what starts it."""

    path: Path
    """Where the system looks for it."""
    content: bytes
    start_command: Sequence[str]
    """Starts the service, and again with every boot or login."""
    stop_command: Sequence[str]


def service_file(platform: Platform, command: Sequence[str], *, home: Path, is_root: bool) -> ServiceFile:
    """Return the service of a command: of the whole machine for root, of the user otherwise."""
    return _launchd(command, home, is_root) if platform == "darwin" else _systemd(command, home, is_root)


def _systemd(command: Sequence[str], home: Path, is_root: bool) -> ServiceFile:
    folder = Path("/etc/systemd/system") if is_root else home / ".config/systemd/user"
    lines = (
        "[Unit]",
        "Description=Baton agent",
        *(("Wants=network-online.target", "After=network-online.target") if is_root else ()),
        # A worker that cannot start is the agent's to retry; wrong settings (status 2) are not mended by trying again.
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        f"ExecStart={' '.join(map(_systemd_word, command))}",
        f"Environment={_systemd_word(f'HOME={home}')}",
        "Restart=always",
        "RestartSec=5",
        "RestartPreventExitStatus=2",
        # The agent stops its worker itself, after the worker's drain.
        "KillMode=mixed",
        f"TimeoutStopSec={_STOP_SECONDS}",
        "NoNewPrivileges=yes",
        "",
        "[Install]",
        f"WantedBy={'multi-user.target' if is_root else 'default.target'}",
        "",
    )
    control = ("systemctl", *(() if is_root else ("--user",)))
    start, stop = (*control, "enable", "--now", _UNIT_NAME), (*control, "disable", "--now", _UNIT_NAME)
    return ServiceFile(folder / _UNIT_NAME, "\n".join(lines).encode("utf-8"), start, stop)


def _systemd_word(word: str) -> str:
    """Return a word as systemd.syntax(7) reads it back: quoted, without specifiers and variables."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def _launchd(command: Sequence[str], home: Path, is_root: bool) -> ServiceFile:
    folder = Path("/Library/LaunchDaemons") if is_root else home / "Library/LaunchAgents"
    log = Path("/var/log") if is_root else home / "Library/Logs"
    content = {
        "Label": LAUNCHD_LABEL,
        "ProgramArguments": list(command),
        "EnvironmentVariables": {"HOME": str(home)},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 5,
        "ExitTimeOut": _STOP_SECONDS,
        # Standard background jobs are slowed down; this one serves requests.
        "ProcessType": "Interactive",
        "StandardOutPath": str(log / "baton-agent.log"),
        "StandardErrorPath": str(log / "baton-agent.log"),
    }
    path = folder / f"{LAUNCHD_LABEL}.plist"
    start, stop = ("launchctl", "load", "-w", str(path)), ("launchctl", "unload", "-w", str(path))
    return ServiceFile(path, plistlib.dumps(content), start, stop)
