"""Must show 5 of trust: mistakes in scheduler, block pool, KV stream and authorisation do not pass the tests.

BATON_MUTANTS_SEED draws others, BATON_MUTANTS as many, and BATON_MUTANTS_OUT names a file for the table.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from house.repository import ROOT
from mutants.areas import AREAS, drawn
from mutants.campaign import Verdict, Workshop
from mutants.report import commit_of_tree, report_of, verdict_of

NUM_MUTANTS = int(os.environ.get("BATON_MUTANTS", "60"))
SEED = int(os.environ.get("BATON_MUTANTS_SEED", "19"))
OUT = os.environ.get("BATON_MUTANTS_OUT", "")
LEAST_SHARE = 0.9
"""Of the mutants that are none in name only."""


@pytest.mark.skipif("BATON_MATRIX" not in os.environ, reason="runs many tests again and again: run `make matrix`")
@pytest.mark.timeout(7200)
def test_mistakes_do_not_pass_the_tests(tmp_path: Path) -> None:
    """Nine of ten are caught, by tests that pass without them."""
    workshop = Workshop(ROOT, tmp_path)
    chosen = drawn(ROOT, SEED, NUM_MUTANTS)
    watched = {area: workshop.watch(area) for area in AREAS}
    verdicts = [workshop.judge(mutant, area, watched[area]) for mutant, area in chosen.items()]
    unreliable = workshop.failing([verdict.caught_by for verdict in verdicts if "::" in verdict.caught_by])

    report = report_of(verdicts, SEED, commit_of_tree())
    print(f"\nseed {SEED}\n{report}")
    if OUT:
        Path(OUT).write_text(report)
    assert unreliable == set()
    assert share_caught(verdicts) >= LEAST_SHARE


def share_caught(verdicts: list[Verdict]) -> float:
    """Return the share of caught mutants among those that are not equivalent."""
    found = [verdict_of(verdict) for verdict in verdicts]
    return found.count("caught") / (len(found) - found.count("equivalent"))
