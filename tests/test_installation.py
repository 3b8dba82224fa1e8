"""The line that installs what is missing names the place from which this Baton came."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from baton.installation import DISTRIBUTION, install_line, lacking
from house.repository import ROOT

_METADATA = """Name: baton-serve
Version: 1
Requires-Dist: grpcio>=1
Requires-Dist: absent-one[x]>=2; extra == "worker"
Requires-Dist: pytest; extra == "worker"
Requires-Dist: absent-two; (sys_platform == "plan9") and extra == "worker"
Requires-Dist: baton-serve[worker]; extra == "torch"
Requires-Dist: absent-three>=0.1; extra == 'torch'
Requires-Dist: absent-four; extra == "other"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that says how Baton was installed; the environment is the shell's."""

    def install(origin: Any = None, installer: str = "pip") -> None:
        folder = tmp_path / "baton_serve-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(_METADATA)
        (folder / "INSTALLER").write_text(f"{installer}\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        found, own = metadata.distribution, metadata.PathDistribution(folder)
        monkeypatch.setattr(metadata, "distribution", lambda name: own if name == DISTRIBUTION else found(name))

    monkeypatch.setattr("shutil.which", lambda _name: str(Path(sys.executable).parent / "pip"))
    return install


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "pip install 'baton-serve[agent,mlx]'"),
        ({"url": "file:///gone.whl", "archive_info": {}}, "pip install 'baton-serve[agent,mlx]'"),
        ({"url": ROOT.as_uri(), "dir_info": {}}, f"pip install 'baton-serve[agent,mlx] @ {ROOT.as_uri()}'"),
        ({"url": ROOT.as_uri(), "dir_info": {"editable": True}}, f"pip install -e '{ROOT}[agent,mlx]'"),
        (
            {"url": "https://a.example/b.whl", "archive_info": {}},
            "pip install 'baton-serve[agent,mlx] @ https://a.example/b.whl'",
        ),
        (
            {"url": "https://a.example/b.git", "vcs_info": {"vcs": "git", "commit_id": "12ab"}},
            "pip install 'baton-serve[agent,mlx] @ git+https://a.example/b.git@12ab'",
        ),
        (
            {"url": "ssh://a.example/b", "vcs_info": {"vcs": "git", "commit_id": "12", "requested_revision": "v1"}},
            "pip install 'baton-serve[agent,mlx] @ git+ssh://a.example/b@v1'",
        ),
    ],
)
def test_extras_come_from_where_the_package_came_from(install: Install, origin: Any, line: str) -> None:
    """An index, a wheel, a folder, a checkout or a repository; by name if that place is no more."""
    install(origin)

    assert install_line("agent", "mlx") == line


def test_the_installer_of_the_environment_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another environment's pip would install there."""
    monkeypatch.setattr("shutil.which", lambda _name: None)
    install()

    assert install_line() == f"{shlex.quote(sys.executable)} -m pip install baton-serve"


def test_an_environment_of_uv_has_no_pip(install: Install) -> None:
    """Its packages say who installed them."""
    install(installer="uv")

    assert install_line("mlx") == f"uv pip install --python {shlex.quote(sys.executable)} 'baton-serve[mlx]'"


def test_a_checkout_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As found by PYTHONPATH."""

    def find(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", find)

    assert install_line("mlx").endswith(f"install -e '{ROOT}[mlx]'")
    assert lacking("mlx") == []


def test_what_extras_lack_is_named(install: Install) -> None:
    """With what they name in turn; what only some platforms need is left to the installer."""
    install()

    assert lacking("worker") == ["absent-one"]
    assert lacking("torch") == ["absent-three", "absent-one"]
    assert lacking() == []
