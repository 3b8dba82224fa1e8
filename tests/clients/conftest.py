"""Environments, clusters and outcomes of `make clients`, and the table at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest

from tests.clients.clusters import Clusters
from tests.clients.environments import InstallError, UnreachableError, command_of, missing_program, page_command
from tests.clients.plan import Cell, Client
from tests.clients.runs import Outcome, run_client, run_script
from tests.clients.table import Table

Outcomes = Callable[[Client], Mapping[str, Outcome]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what installs clients where it was not asked for."""
    for item in items:
        if "outcome" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(3600))
            if "BATON_CLIENTS" not in os.environ:
                item.add_marker(pytest.mark.skip(reason="installs clients from their registries: run `make clients`"))


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Return what runs a client's script, once, with all features that this test run asks of it."""
    clusters, table = Clusters(), Table()
    wanted = [item.callspec.params.get("cell") for item in request.session.items if hasattr(item, "callspec")]

    @cache
    def run(name: str) -> Mapping[str, Outcome]:
        cells = [cell for cell in wanted if isinstance(cell, Cell) and cell.client.name == name]
        client, features = cells[0].client, [cell.feature for cell in cells]
        found = _run(client, features, clusters)
        table.add(client, found)
        return found

    yield lambda client: run(client.name)
    clusters.close()
    if not request.session.shouldstop:
        table.write()


@pytest.fixture
def outcome(cell: Cell, outcomes: Outcomes) -> Outcome:
    """Return what the client's script said of a cell."""
    return outcomes(cell.client)[cell.feature]


def _run(client: Client, features: list[str], clusters: Clusters) -> Mapping[str, Outcome]:
    absent = missing_program(client)
    if absent:
        return dict.fromkeys(features, Outcome(skip=absent))
    try:
        command = command_of(client)
    except UnreachableError as error:
        return dict.fromkeys(features, Outcome(skip=str(error)))
    except InstallError as error:
        return dict.fromkeys(features, Outcome(error=f"cannot be installed: {error}"))
    served = clusters.get(client.cluster)
    asked = [name for name in features if client.page is None or name != "client"]
    told = dict(run_script(command, asked, served.cluster, served.model_dir, client.limit_seconds, served.variables))
    if len(asked) < len(features):
        told["client"] = run_client(page_command(client, "client"), served.cluster, served.variables)
    return told
