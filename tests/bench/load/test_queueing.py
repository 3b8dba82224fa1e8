"""Waits by formula."""

from __future__ import annotations

from random import Random

import pytest

from bench.load.row import waits
from bench.workloads.traces import poisson


def test_a_request_waits_for_those_before_it() -> None:
    """Three at once wait for none, one and two; one that comes after they are done waits for nobody."""
    assert waits([0.0, 0.0, 0.0, 10.0, 10.5], 1.0) == [0.0, 1.0, 2.0, 0.0, 0.5]


def test_many_poisson_arrivals_wait_as_the_formula_says() -> None:
    """Of an M/D/1 queue (Pollaczek and Khinchine): at a utilisation u, u / (2 (1 - u)) services."""
    found = waits(poisson(50_000, 0.5, Random(1)), 1.0)

    assert sum(found) / len(found) == pytest.approx(0.5 / (2 * (1 - 0.5)), rel=0.05)
