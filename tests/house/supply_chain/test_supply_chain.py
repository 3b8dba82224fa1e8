"""What others wrote comes as it was tested, under licences that are known, and no argument is a secret."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.utils import canonicalize_name
from pydantic import SecretStr

from baton.cli.app import make_app
from baton.cli.serve import load_service
from baton.config.settings import ROLES
from house.extras import brought_by
from house.repository import ROOT
from house.supply_chain.notice import NOTICE, notice

_FREE = re.compile(r"apache|mit|bsd|psf|python software|mpl|mozilla|isc|zlib|cc0|cnri", re.IGNORECASE)
_LESSER = {"crc32c", "zeroconf"}
"""Under the LGPL, which NOTICE.md tells of."""
_SECRET = re.compile(r"(^|_)(keys?|tokens?|secret|password|credentials)$")


def test_the_notice_is_what_the_packages_say() -> None:
    """Those of other platforms, which this one does not install, stay as they are."""
    told, written = notice().splitlines(), NOTICE.read_text().splitlines()

    assert [line for line in told if line not in written] == [], "run `make notice`"


def test_what_is_pinned_is_pinned_by_hash() -> None:
    """In each installation, at the version of constraints.txt; torch alone is the machine's to choose."""
    pins = (ROOT / "constraints.txt").read_text().split()
    locked = {path.stem: _locked(path) for path in sorted((ROOT / "requirements").glob("*.txt"))}
    versions = {f"{name}=={version}" for packages in locked.values() for name, version in packages}
    pinned = {f"{canonicalize_name(name)}=={version}" for name, _, version in (pin.partition("==") for pin in pins)}

    assert pinned - versions == {pin for pin in pinned if pin.startswith("torch==")}, "run `make lock`"
    assert versions <= pinned
    for stem, extras in {"control": ("agent", "gateway", "worker"), "nodes": ("agent", "cuda")}.items():
        assert brought_by(*extras) - {name for name, _ in locked[stem]} <= {"torch"}
        assert f"requirements/{stem}.txt" in (ROOT / "docker" / "Dockerfile").read_text()


def _locked(path: Path) -> set[tuple[str, str]]:
    """Return names and versions; each has its hashes."""
    packages = path.read_text().replace("\\\n", " ").splitlines()
    assert all(" --hash=sha256:" in package for package in packages)
    return {(name, version) for name, _, version in (package.split()[0].partition("==") for package in packages)}


def test_licences_are_free_and_named() -> None:
    """A package under another kind of licence is a decision, not a line of a lock file."""
    rows = dict(re.findall(r"(?m)^\| ([a-z0-9-]+) \| (.*) \|$", NOTICE.read_text().partition("|---|")[2]))
    others = {name for name, text in rows.items() if not _FREE.search(text) or "GPL" in text}

    assert others == _LESSER


@pytest.mark.parametrize("role", ROLES)
def test_no_flag_of_a_service_is_a_secret(role: str) -> None:
    """Arguments are for all users of a machine to read: secrets come from files. A join token is for one day."""
    fields = load_service(role).settings_class.model_fields
    texts = {name for name, field in fields.items() if field.annotation in (str, SecretStr)}

    assert {name for name in texts if _SECRET.search(name) or fields[name].annotation is SecretStr} <= {"join_token"}


def test_no_option_of_a_command_is_a_secret() -> None:
    """They are files, or variables of the environment."""
    options = {
        f"{command.name} {option.name}"
        for command in _commands(typer.main.get_command(make_app()))
        for option in command.params
        if _SECRET.search(option.name or "") and not option.is_flag and "'int'" not in str(option.type_descriptor)
    }

    assert options == set()


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for each in getattr(command, "commands", {}).values():
        yield from _commands(each)
