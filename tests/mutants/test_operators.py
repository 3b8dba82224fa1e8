"""Tests of the mutants themselves: what is changed, what is left, and which tests are asked."""

from __future__ import annotations

import pytest

from house.repository import ROOT
from mutants.areas import Area, drawn
from mutants.campaign import WatchedTest, covering_tests
from mutants.operators import Mutant, mutants_of

MODULE = b'''"""A module: 1 < 2."""
LIMIT = 128
NAMES = {"a", "b"}


class Pool:
    def take(self, count: int = 3) -> bool:
        """Take."""
        assert count > 0, "impossible"
        if count >= len(self.free):
            raise ValueError(f"{count} > {len(self.free)}")
        log.debug("taken %d", count + 1)
        self.free -= count
        return min(count, 1) == 1 and not self.is_closed
'''


def _changes() -> set[tuple[str, str]]:
    return {(mutant.before, mutant.after) for mutant in mutants_of("pool.py", MODULE)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("count >= len(self.free)", "(count > len(self.free))"),
        ("count >= len(self.free)", "not (count >= len(self.free))"),
        ("self.free -= count", "pass"),
        ("self.free -= count", "self.free += count"),
        ("min(count, 1)", "max(count, 1)"),
        ("not self.is_closed", "(self.is_closed)"),
        ("min(count, 1) == 1 and not self.is_closed", "(min(count, 1) == 1 or not self.is_closed)"),
        ("min(count, 1) == 1 and not self.is_closed", "(not self.is_closed)"),
        ("1", "2"),
        ('{"a", "b"}', "{'b'}"),
    ],
)
def test_a_mutant_is_a_small_mistake(before: str, after: str) -> None:
    """Comparisons, conditions, arithmetic, constants, members, and what a statement does."""
    assert (before, after) in _changes()


def test_what_has_no_behaviour_is_left() -> None:
    """Docstrings, annotations, defaults, assertions, messages, log lines and constants of the module."""
    places = {mutant.line for mutant in mutants_of("pool.py", MODULE)}

    assert places == {3, 10, 11, 13, 14}
    assert {mutant.after for mutant in mutants_of("pool.py", MODULE) if mutant.line == 11} == {"pass"}


def test_a_mutant_differs_in_one_place_and_can_be_compiled() -> None:
    """The rest of the module stays as it is."""
    for mutant in mutants_of("pool.py", MODULE):
        changed = mutant.applied_to(MODULE)
        compile(changed, "pool.py", "exec")
        assert changed != MODULE
        assert changed.startswith(MODULE[: mutant.start])
        assert changed.endswith(MODULE[mutant.end :])


def test_a_seed_draws_the_same_mutants_again() -> None:
    """And another one others."""
    areas = {"pool": Area(("services/baton/kv/pool.py",), ())}

    assert drawn(ROOT, 1, 8, areas) == drawn(ROOT, 1, 8, areas)
    assert drawn(ROOT, 1, 8, areas).keys() != drawn(ROOT, 2, 8, areas).keys()


def test_a_mutant_is_shown_to_the_tests_that_run_its_lines() -> None:
    """What none of them runs may run when the module is loaded: it is shown to all that run anything of it."""
    tests = [
        WatchedTest("fast", 0.1, {"pool.py": frozenset({10, 13})}),
        WatchedTest("slow", 9.0, {"pool.py": frozenset({14})}),
        WatchedTest("other", 0.1, {"step.py": frozenset({10})}),
    ]

    assert _ids_of(Mutant("pool.py", 10, 11, "Pool.take", "", "", 0, 0), tests) == ["fast"]
    assert _ids_of(Mutant("pool.py", 12, 12, "Pool.take", "", "", 0, 0), tests) == ["fast", "slow"]
    assert _ids_of(Mutant("pool.py", 14, 14, "Pool.take", "", "", 0, 0), tests) == ["slow"]
    assert _ids_of(Mutant("pool.py", 3, 3, "", "", "", 0, 0), tests) == ["fast", "slow"]


def _ids_of(mutant: Mutant, tests: list[WatchedTest]) -> list[str]:
    return [test.node_id for test in covering_tests(mutant, tests)]
