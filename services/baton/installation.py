"""Where this Baton was installed from, and the line that installs what it lacks.

Every hint of an error gets its line here: whoever runs it adds extras to the environment that lacks them, from the same
wheel, repository or checkout; by name alone only where the package came from an index, or is not where it came from.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "baton-serve"
"""Its name as a package; `baton` is another project's."""


def install_line(*extras: str) -> str:
    """Return a command that installs extras of pyproject.toml beside what this environment has."""
    name = f"{DISTRIBUTION}[{','.join(extras)}]" if extras else DISTRIBUTION
    origin = _origin()
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info")
    path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    if vcs:
        requirement = f"{name} @ {vcs['vcs']}+{url}@{vcs.get('requested_revision') or vcs['commit_id']}"
    elif path is not None and origin.get("dir_info", {}).get("editable"):
        return f"{_install()} -e {shlex.quote(name.replace(DISTRIBUTION, str(path)))}"
    elif url and (path is None or path.exists()):
        requirement = f"{name} @ {url}"
    else:
        requirement = name
    return f"{_install()} {shlex.quote(requirement)}"


def lacking(*extras: str) -> Sequence[str]:
    """Return the packages of extras that this environment lacks, but for those of some platforms alone."""
    wanted, missing = list(extras), []
    for extra in wanted:
        for package, nested in _packages_of(extra):
            wanted += [name for name in nested if name not in wanted]
            if not nested and not _is_installed(package):
                missing.append(package)
    return missing


def _packages_of(extra: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what an extra needs: a package, or this one with further extras."""
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout that is not installed: nobody says what it needs
        requirements = []
    for requirement in requirements:
        match = re.match(r"""([\w.-]+)(?:\[([\w,-]+)\])?[^;]*; extra == ['"]([\w-]+)['"]$""", requirement)
        if match and match[3] == extra:
            yield match[1], match[2].split(",") if match[1] == DISTRIBUTION else ()


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def _origin() -> Mapping[str, Any]:
    """Return what the installer noted (PEP 610); of a checkout that is not installed, what it would note."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        checkout = Path(__file__).resolve().parents[2]
        has_project = (checkout / "pyproject.toml").is_file()
        return {"url": checkout.as_uri(), "dir_info": {"editable": True}} if has_project else {}
    return dict(json.loads(text or "{}"))


def _install() -> str:
    """Return how this environment's installer begins, whether or not the environment is the shell's."""
    python = shlex.quote(sys.executable)
    try:
        installer = metadata.distribution(DISTRIBUTION).read_text("INSTALLER") or ""
    except metadata.PackageNotFoundError:
        installer = ""
    if installer.strip() == "uv":
        return f"uv pip install --python {python}"
    is_first = Path(shutil.which("pip") or "").parent == Path(sys.executable).parent
    return "pip install" if is_first else f"{python} -m pip install"
