"""What an extra of `baton-serve` brings, by pyproject.toml and what the packages of this environment say they need."""

from __future__ import annotations

import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from baton.installation import DISTRIBUTION
from house.repository import ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def brought_by(*wanted_extras: str) -> set[str]:
    """Return the names of the distributions that `pip install baton-serve[EXTRAS]` brings; "" is no extra."""
    extras = _PROJECT["optional-dependencies"]
    brought, seen = set[str](), set[tuple[str, str]]()
    waiting = [
        Requirement(text)
        for text in (*_PROJECT["dependencies"], f"{DISTRIBUTION}[{','.join(filter(None, wanted_extras))}]")
    ]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate():
            continue
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            if name == DISTRIBUTION:
                waiting += [Requirement(text) for text in extras.get(wanted, ())]
                continue
            brought.add(name)
            waiting += _required_by(name, wanted)
    return brought


def modules_beyond(brought: set[str]) -> set[str]:
    """Return the top-level modules of this environment that none of some distributions holds."""
    return {
        module
        for module, distributions in metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & {*brought, "baton", DISTRIBUTION}
    }


def _required_by(name: str, extra: str) -> list[Requirement]:
    """Return what an installed distribution needs, for one of its extras or in any case."""
    try:
        texts = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []  # of another platform
    required = []
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            requirement.marker = None
            required.append(requirement)
    return required
