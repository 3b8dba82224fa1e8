"""One cluster for all, a namespace for each test, and a table of what was measured."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster import Cluster, CommandError
from tests.kubernetes.lab import LabError, absence, running_cluster
from tests.kubernetes.results import RESULTS, Measured

_MODE = os.environ.get("BATON_KUBERNETES", "")
"""sample or all; empty: none of these tests runs."""
_LIMIT_SECONDS = float(os.environ.get("BATON_KUBERNETES_SECONDS", "inf"))
"""From the begin on; what would not end before it is not begun."""
_began = time.monotonic()
_measured: list[Measured] = []
_failed: set[str] = set()
"""Tests that did not pass, by their ids."""
_passed: set[str] = set()
"""Those that ran to their end, and passed."""


def pytest_configure(config: pytest.Config) -> None:
    """Know the mark of what CI runs."""
    mark = "sample(seconds=60): part of what CI runs on a live Kubernetes, and how long it takes on a small machine"
    config.addinivalue_line("markers", mark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what was not asked for, or cannot be here, and say why; last comes torch, whose image takes long."""
    items.sort(key=lambda item: "cpu-only" in item.name)
    here = Path(__file__).parent
    own = [item for item in items if item.path.is_relative_to(here)]
    cause = absence() if _MODE else "`make kubernetes` runs it on a live Kubernetes"
    for item in own:
        if cause:
            item.add_marker(pytest.mark.skip(reason=cause))
        elif _MODE == "sample" and item.get_closest_marker("sample") is None:
            item.add_marker(pytest.mark.skip(reason="no part of the sample; `make kubernetes` runs all"))
        item.add_marker(pytest.mark.timeout(1800))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what has no time any more."""
    mark = item.get_closest_marker("sample")
    left_seconds = _LIMIT_SECONDS - (time.monotonic() - _began)
    if mark is not None and left_seconds < mark.kwargs.get("seconds", 60.0):
        pytest.skip(f"{left_seconds:.0f} s are left of BATON_KUBERNETES_SECONDS={_LIMIT_SECONDS:.0f}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what failed, and what passed."""
    if report.failed:
        _failed.add(report.nodeid)
    elif report.when == "call" and report.passed:
        _passed.add(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured."""
    if _measured:
        terminalreporter.section("measured on Kubernetes")
    for each in _measured:
        terminalreporter.write_line(f"{each.name}: {'; '.join(each.lines)}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Return the cluster; in the sample, a machine that has none says so and passes."""
    is_sample = _MODE == "sample"
    try:
        with running_cluster(builds_ahead=is_sample) as found:
            yield found
    except LabError as error:
        if not is_sample:
            raise
        pytest.skip(f"no cluster can be brought up here: {error}")


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a namespace of the test's own, at Pod Security level restricted; the rest of the cluster is left alone."""
    letters = (letter if letter.isalnum() else "-" for letter in request.node.name.lower().removeprefix("test_"))
    name = f"baton-{''.join(letters)[:40]}".strip("-")
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": label}}
    cluster.kubectl("apply", "--filename", "-", text=json.dumps(document))
    yield name
    if request.node.nodeid in _failed:
        _tell(cluster, name)
    cluster.kubectl("delete", "namespace", name, "--timeout", "120s", timeout_seconds=150)


def _tell(cluster: Cluster, namespace: str) -> None:
    """Print what there is to see in the namespace of a test that failed."""
    selector = ("--selector", "app.kubernetes.io/instance", "--all-containers", "--prefix", "--tail", "40")
    for arguments in (("get", "pods", "--output", "wide"), ("get", "events"), ("logs", *selector)):
        try:
            print(cluster.kubectl(*arguments, "--namespace", namespace))
        except CommandError as error:
            print(error)


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    """Return what takes lines for the table at the end, and numbers for the file of results."""
    taken = Measured(request.node.name.removeprefix("test_"))
    yield taken
    _measured.append(taken)
    if RESULTS:
        taken.write(RESULTS, has_passed=request.node.nodeid in _passed)
