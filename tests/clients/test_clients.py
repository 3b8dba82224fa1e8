"""Clients from their registries, unmodified, against Baton: one test per client and feature (`make clients`)."""

from __future__ import annotations

import pytest

from tests.clients.plan import Cell, all_cells
from tests.clients.runs import Outcome


@pytest.mark.parametrize("cell", all_cells(), ids=str)
def test_a_client_works_unmodified(cell: Cell, outcome: Outcome) -> None:
    """Its script, which runs in an environment of its own, says so."""
    if outcome.skip:
        pytest.skip(outcome.skip)

    assert outcome.error == ""
