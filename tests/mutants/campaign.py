"""Runs the tests of each mutant, in a copy of the repository, until one fails."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from house.repository import tracked_files
from mutants.areas import AREAS
from mutants.operators import Mutant

MUTANT_SECONDS = 240.0
"""Longest run of a mutant's tests: what hangs for so long is caught, for its tests would not."""
_SLOW_FACTOR = 4.0
"""By how much a busy machine stretches what tests took when they were watched."""
_LEAST_TEST_SECONDS = 20
"""A test may take, whatever it took when it was watched."""
_START_SECONDS = 120
"""What pytest may take to find the tests of a mutant on a busy machine."""
_WATCH_SECONDS = 1800.0
_MOST_SECONDS = 40.0
"""Of the tests of a mutant, watched: the fastest that fit are asked."""


@dataclass(frozen=True)
class WatchedTest:
    """What is known of a test that passes."""

    node_id: str
    """Its name for pytest."""
    seconds: float
    """What it took, watched."""
    lines: Mapping[str, frozenset[int]]
    """The lines that it ran, by module."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    """The mutant."""
    area: str
    """Where it was drawn."""
    caught_by: str
    """The test that failed; "time" if none ended, or that the process died; empty: it survived."""
    num_tests: int
    """Tests that run its lines."""
    seconds: float
    """What they took until one failed."""


class Workshop:
    """A copy of the repository in which one module at a time is another.

    Args:
        root: The repository: files that git knows are copied, as they are now.
        folder: Where the copy goes.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        for file in tracked_files():
            copy = folder / file.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)

    def watch(self, area: str) -> list[WatchedTest]:
        """Return the tests of an area that pass, the fastest first.

        Raises:
            AssertionError: If hardly any does.
        """
        modules = {
            path.relative_to(self._folder).as_posix()
            for place in AREAS[area].modules
            for path in ([self._folder / place] if place.endswith(".py") else (self._folder / place).glob("*.py"))
        }
        file = self._folder / f"line_hits_{area.replace(' ', '_')}.json"
        file.write_text(json.dumps({"modules": sorted(modules)}))
        variables = {"BATON_LINE_HITS": str(file)}
        output, _ = self.run_pytest(["-p", "mutants.line_hits", *AREAS[area].tests], _WATCH_SECONDS, variables)
        tests: dict[str, Any] = json.loads(file.read_text()).get("tests", {})
        passed = [
            WatchedTest(name, test["seconds"], {path: frozenset(lines) for path, lines in test["lines"].items()})
            for name, test in tests.items()
            if test["is_passed"] and test["lines"]
        ]
        assert len(passed) > len(tests) / 4, f"of {len(tests)} tests of {area} too few pass:\n{output[-2000:]}"
        return sorted(passed, key=lambda test: test.seconds)

    def judge(self, mutant: Mutant, area: str, tests: Sequence[WatchedTest]) -> Verdict:
        """Run the tests that run a mutant's lines, the fastest first, until one fails."""
        covering = covering_tests(mutant, tests)
        module = self._folder / mutant.path
        source = module.read_bytes()
        started = time.monotonic()
        try:
            _write(module, mutant.applied_to(source))
            caught_by = self._first_failure(covering) if covering else ""
        finally:
            _write(module, source)
        return Verdict(mutant, area, caught_by, len(covering), time.monotonic() - started)

    def failing(self, node_ids: Sequence[str]) -> set[str]:
        """Return which of some tests fail without a mutant: they prove nothing."""
        if not node_ids:
            return set()
        output, _ = self.run_pytest(["-rfE", *self._named(node_ids)], MUTANT_SECONDS)
        return set(_failures_in(output))

    def _first_failure(self, tests: Sequence[WatchedTest]) -> str:
        total = sum(test.seconds for test in tests)
        each = max(_LEAST_TEST_SECONDS, int(_SLOW_FACTOR * max(test.seconds for test in tests)))
        names = self._named([test.node_id for test in tests])
        return self._first_failure_of(
            [f"--timeout={each}", *names], min(MUTANT_SECONDS, _START_SECONDS + _SLOW_FACTOR * total)
        )

    def _first_failure_of(self, arguments: Sequence[str], timeout_seconds: float) -> str:
        output, status = self.run_pytest(["-x", "-rfE", *arguments], timeout_seconds)
        if status is None:
            return "time"
        if status == 0:
            return ""
        return next(iter(_failures_in(output)), "the end of its process" if status != 1 else "unknown")

    def _named(self, node_ids: Sequence[str]) -> list[str]:
        """Return the names by a file, as they may be more than a command line takes."""
        file = self._folder / "node_ids.txt"
        file.write_text("\n".join(node_ids))
        return [f"@{file}"]

    def run_pytest(
        self, arguments: Sequence[str], timeout_seconds: float, variables: Mapping[str, str] | None = None
    ) -> tuple[str, int | None]:
        """Return the output of pytest in the copy, and its exit status; None: it took too long."""
        places = (self._folder / "services", self._folder, self._folder / "tests")
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "BATON_"))},
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            **(variables or {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", *arguments],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            return "", None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return output, process.returncode


def _write(module: Path, source: bytes) -> None:
    """Write a module, and drop what was compiled of it: a mutant may be as long as it was, and as old."""
    module.write_bytes(source)
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
        compiled.unlink()


def covering_tests(mutant: Mutant, tests: Sequence[WatchedTest]) -> list[WatchedTest]:
    """Return the tests that run a mutant's lines; of lines that run when the module is loaded, those that run it."""
    wanted = range(mutant.line, mutant.end_line + 1)
    here = [test for test in tests if mutant.path in test.lines]
    chosen = [test for test in here if not test.lines[mutant.path].isdisjoint(wanted)] or here
    return [
        test
        for test, total in zip(chosen, accumulate(test.seconds for test in chosen), strict=True)
        if total < _MOST_SECONDS
    ]


def _failures_in(output: str) -> list[str]:
    """Return the tests that failed, from pytest's summary."""
    words = [line.split(" - ")[0].partition(" ") for line in output.splitlines()]
    return [rest for word, _, rest in words if word in ("FAILED", "ERROR") and rest.startswith("tests/")]
