"""Every process that the chart starts has in its image what it imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from charts.render import example_names, manifests_of, read_example, render
from house.extras import brought_by
from tests.docker.closure import NOT_RUN, foreign_imports, unmet_imports
from tests.docker.dockerfile import read_stages

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("image", sorted(NOT_RUN))
def test_an_image_installs_what_its_processes_import(image: str) -> None:
    """The extras of its build stage bring every package that the code of its services names, at any place."""
    brought = _brought_by(image)
    owners = _owners()
    lacking = {
        statement: files
        for statement, files in _imports().items()
        if not {canonicalize_name(name) for name in owners.get(statement.split()[1].partition(".")[0], [])} & brought
    }

    assert unmet_imports(image, lacking) == []


def test_a_package_that_is_not_brought_is_found() -> None:
    """The check fails where it should: without its extra, the router could take no machine in."""
    assert unmet_imports("control", {"from cryptography import x509": ["security/authority.py"]}) != []
    assert unmet_imports("control", {"import torch": ["engine/runners/torch/loader.py"]}) == []


def test_roles_run_where_the_check_expects_them() -> None:
    """No example starts a gateway from an image of workers, whose imports are not asked for there."""
    found: dict[str, set[str]] = {}
    for name in example_names():
        for each in manifests_of(render(read_example(name))):
            text = str(each)
            for image in re.findall(r"baton-(control|cpu|cuda)[:@]", text) if each["kind"] == "Deployment" else []:
                found.setdefault(image, set()).update(re.findall(r"'args': \['serve', '([a-z-]+)'", text))

    assert found["cpu"] == {"prefill", "decode"} == found["cuda"] | {"decode"}
    assert found["control"] == {"gateway", "router", "cache-index", "prefill", "decode", "worker", "agent"}


@cache
def _imports() -> dict[str, list[str]]:
    return foreign_imports(_ROOT / "services" / "baton")


@cache
def _owners() -> Mapping[str, list[str]]:
    return packages_distributions()


def _brought_by(image: str) -> set[str]:
    """Return all packages that a build stage's command installs, those that packages need in turn included."""
    stage = next(stage for stage in read_stages(_ROOT / "docker" / "Dockerfile") if stage.name == f"build-{image}")
    (extras,) = re.findall(r"'\.\[([a-z,]+)\]'", " ".join(each.arguments for each in stage.instructions))
    return brought_by(*extras.split(","))
