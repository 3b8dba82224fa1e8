"""The pages of docs/clients: what installs, generates, builds and runs a client, taken from where users read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALL = re.compile(r"^(?:apt-get|pip|npm) install (.*)$", re.MULTILINE)
_ADDRESS = " 127.0.0.1:8001"


@dataclass(frozen=True, slots=True)
class ClientPage:
    """What a page says: a fence of commands, which end with the line that runs the client, and the client's source."""

    packages: Sequence[str]
    """Of Debian or the language's registry, that are installed first."""
    build: str
    """Commands that generate code, and compile where that is needed, in a folder with protos/ and the source."""
    run: str
    """Command that runs the client, without arguments."""
    source: str
    """The client's."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a page.

        Raises:
            ValueError: If it has no such fences.
        """
        (_, commands), (_, source), *_ = _FENCE.findall(path.read_text("utf-8"))
        packages = [name for line in _INSTALL.findall(commands) for name in line.split() if not name.startswith("-")]
        rest = [line for line in commands.splitlines() if line and not _INSTALL.match(line)]
        *build, run = rest
        if _ADDRESS not in run:
            raise ValueError(f"{path.name}: expected the last command to run the client at{_ADDRESS}, got {run!r}")
        return cls(packages, "\n".join(build), run.split(_ADDRESS)[0], source)

    def of_checks(self, command: str) -> str:
        """Return a command of the page as it is for the checks, which lie beside the client and are built like it."""
        return re.sub(r"\bClient\b", "Checks", re.sub(r"\bclient\b", "checks", command))
