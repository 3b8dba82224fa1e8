"""Folders with one client each, as a user has it who installs nothing else; made once per set of versions."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from tests.clients.pages import ClientPage
from tests.clients.plan import ROOT, Client

CACHE = Path(os.environ.get("BATON_CLIENTS_CACHE") or ROOT / ".clients")
"""Git ignores it; what is in it may be deleted at any time."""

_INSTALL_SECONDS = 1500
_QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "NEXT_TELEMETRY_DISABLED": "1",
    "OTEL_SDK_DISABLED": "true",
    "VERCEL_TELEMETRY_DISABLED": "1",
}
"""No client may call out: there may be nothing to call."""
_PROGRAMS: Mapping[str, Sequence[str]] = {
    "python": (),
    "node": ("node", "npm"),
    "java": ("java", "javac"),
    "debian": ("dpkg-query",),
    "rust": ("cargo", "protoc"),
}
_PATH = "$PWD/bin:$PWD/node_modules/.bin:$PATH"
"""In a client's folder, whose packages bring programs."""
_FETCH = ("cargo", "fetch")
_KEPT = ("EXO_CHECKOUT", "HOME", "LANG", "PATH", "TMPDIR")
"""Variables of this process that clients see."""


class InstallError(Exception):
    """A client's packages cannot be installed."""


class UnreachableError(InstallError):
    """The registry of a client's packages does not answer here."""


def missing_program(client: Client) -> str | None:
    """Return what the client's runtime lacks on this machine, as a word for people."""
    needed = (f"python{client.python}",) if client.python else _PROGRAMS[client.runtime]
    missing = [name for name in needed if shutil.which(name) is None]
    if client.runtime == "debian" and not missing:
        missing = [name for name in client.packages if not _debian_version(name)]
    return f"not installed: {', '.join(missing)}" if missing else None


def versions_of(client: Client) -> Sequence[str]:
    """Return what was run: the pinned packages, or where there are none, what the runtime calls itself."""
    if client.runtime == "debian":
        return [f"{name}={_debian_version(name)}" for name in client.packages]
    if client.packages:
        return client.packages
    program = _PROGRAMS[client.runtime][0]
    told = subprocess.run((program, "-version"), capture_output=True, text=True, timeout=60, check=False)
    return told.stderr.splitlines()[:1]


def command_of(client: Client) -> Sequence[str]:
    """Return the command that runs a client's script, its packages installed.

    Raises:
        InstallError: If they cannot be.
    """
    folder = installed(client)
    if client.page:
        return page_command(client, "checks")
    if client.runtime == "python":
        return (str(folder / "bin" / "python"), str(client.script))
    if client.runtime == "java":
        return ("java", "-Xmx256m", "-cp", str(folder), client.script.stem)
    # A module finds packages from where it lies: the folder of packages takes copies of the scripts.
    for source in client.script.parent.glob("*.mjs"):
        shutil.copy(source, folder)
    return ("node", str(folder / client.script.name))


def page_command(client: Client, program: Literal["client", "checks"]) -> Sequence[str]:
    """Return the command that runs a program of a client's page, in the folder in which it was made."""
    page, folder = page_of(client), installed(client)
    run = page.run if program == "client" else page.of_checks(page.run)
    return ("sh", "-c", f'cd {shlex.quote(str(folder))} && PATH={_PATH} exec {run} "$@"', "sh")


def page_of(client: Client) -> ClientPage:
    """Return what a gRPC client's page says."""
    assert client.page is not None
    return ClientPage.read(client.page)


def script_environment(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Return all that a script's process sees: nothing that could lead a client elsewhere, such as keys or proxies."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_QUIET, "no_proxy": "*", "PYTHONUNBUFFERED": "1", **variables}


def installed(client: Client) -> Path:
    """Return the folder, installed if it is not there whole."""
    made_of = _sources(client) if client.page else [client.script] if client.runtime == "java" else []
    versions = "\n".join((client.python or sys.version, *client.packages, *(path.read_text() for path in made_of)))
    folder = CACHE / f"{client.name}-{hashlib.sha256(versions.encode()).hexdigest()[:10]}"
    stamp = folder / ".installed"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in (*_install_commands(client, folder), *_build_commands(client, folder)):
            _run(command, folder)
        stamp.touch()
    return folder


def _install_commands(client: Client, folder: Path) -> Sequence[Sequence[str]]:
    if client.runtime in ("debian", "rust"):
        return ()
    if client.runtime == "python":
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        python = f"python{client.python}" if client.python else sys.executable
        return ((python, "-m", "venv", str(folder)), (*pip, *client.packages))
    if client.runtime == "java":
        return (("javac", "-d", str(folder), str(client.script)),)
    npm = ("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *client.packages)
    return (("npm", "init", "--yes"), npm)


def _build_commands(client: Client, folder: Path) -> Sequence[Sequence[str]]:
    """Return the commands of a client's page, for the client and for its checks, in a folder with all they need."""
    if not client.page:
        return ()
    (folder / "protos").symlink_to(ROOT / "protos")
    for source in client.script.parent.iterdir():
        shutil.copy(source, folder)
    page = page_of(client)
    builds = dict.fromkeys((page.build, page.of_checks(page.build)))
    return [
        *((_FETCH,) if client.runtime == "rust" else ()),
        *(("sh", "-ec", f"PATH={_PATH}\n{each}") for each in builds),
    ]


def _sources(client: Client) -> Sequence[Path]:
    """Return all that a page's programs are made of."""
    assert client.page is not None
    return (client.page, *sorted(client.script.parent.iterdir()), *sorted((ROOT / "protos/baton/v1").iterdir()))


@cache
def _debian_version(package: str) -> str:
    """Return the version of a package of Debian; empty: it is not installed."""
    command = ("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Version}", package)
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    return told[3:].strip() if told.startswith("ii ") else ""


def _run(command: Sequence[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        told = done.stderr.strip()
        if command == _FETCH:
            raise UnreachableError("the registry of crates is out of reach")
        raise InstallError(f"{' '.join(command)}: {told[-600:]}")
