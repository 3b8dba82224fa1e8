"""One cluster for all, a namespace for each test, and a table of what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster
from tests.kubernetes.lab import absence, running_cluster

_MODE = os.environ.get("BATON_KUBERNETES", "")
"""sample or all; empty: none of these tests runs."""
_measured: dict[str, str] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Know the mark of what CI runs."""
    config.addinivalue_line("markers", "sample: part of what CI runs on a live Kubernetes")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what was not asked for, or cannot be here, and say why."""
    here = Path(__file__).parent
    own = [item for item in items if item.path.is_relative_to(here)]
    cause = absence() if _MODE else "`make kubernetes` runs it on a live Kubernetes"
    for item in own:
        if cause:
            item.add_marker(pytest.mark.skip(reason=cause))
        elif _MODE == "sample" and item.get_closest_marker("sample") is None:
            item.add_marker(pytest.mark.skip(reason="no part of the sample; `make kubernetes` runs all"))
        item.add_marker(pytest.mark.timeout(1800))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, and write it where BATON_KUBERNETES_OUT says."""
    if _measured:
        terminalreporter.section("measured on Kubernetes")
        for name, text in _measured.items():
            terminalreporter.write_line(f"{name}: {text}")
    if out := os.environ.get("BATON_KUBERNETES_OUT"):
        Path(out).write_text(json.dumps(_measured, indent=1))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return the cluster."""
    with running_cluster() as found:
        yield found


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a namespace of the test's own, at Pod Security level restricted; the rest of the cluster is left alone."""
    letters = (letter if letter.isalnum() else "-" for letter in request.node.name.lower().removeprefix("test_"))
    name = f"baton-{''.join(letters)[:40]}".strip("-")
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
    cluster.kubectl("apply", "--filename", "-", text=json.dumps(document))
    yield name
    cluster.kubectl("delete", "namespace", name, "--timeout", "120s", timeout_seconds=150)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return what takes a line for the table at the end."""

    def note(text: str) -> None:
        name = request.node.name.removeprefix("test_")
        _measured[name] = f"{_measured[name]}; {text}" if name in _measured else text

    return note
