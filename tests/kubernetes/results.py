"""What the suite measured: a table at the end of a run, and a file that keeps the last run of each test."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.results_file import describe_machine, write_results

RESULTS = Path(os.environ["BATON_KUBERNETES_OUT"]) if os.environ.get("BATON_KUBERNETES_OUT") else None
"""File of results that takes what is measured; None: none does."""


@dataclass
class Measured:
    """What one test measured."""

    name: str
    """The test's, without `test_`."""
    lines: list[str] = field(default_factory=list)
    """For people."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """For machines, raw samples too."""

    def __call__(self, line: str = "", **numbers: Any) -> None:
        """Take a line, and numbers by their names."""
        self.lines += [line] if line else []
        self.numbers.update(numbers)

    def write(self, path: Path, *, has_passed: bool) -> None:
        """Put what was measured, if anything, into a file of results, in place of what the test measured before."""
        if not (self.lines or self.numbers):
            return
        machine = describe_machine()
        entry = {
            "passed": has_passed,
            **{key: machine[key] for key in ("time", "commit", "is_modified", "load_average")},
            "lines": self.lines,
            "numbers": self.numbers,
        }
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known: Mapping[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
            tests = {key: value for key, value in known.items() if key != "machine"}
            about = {key: machine[key] for key in ("platform", "processor", "cores")}
            tests = dict(sorted({**tests, self.name: entry}.items()))
            write_results(path, {"machine": about, **tests})
            path.with_suffix(".md").write_text(_table(tests), "utf-8")
        path.with_suffix(".lock").unlink(missing_ok=True)


def _table(tests: Mapping[str, Any]) -> str:
    """Return what clients saw in each test, as a table for people."""
    rows = [
        f"| {name.replace('_', ' ')} | {seen['requests']} | {seen['lost']} | {seen['wrong']}"
        f" | {seen['worst_gap_seconds']:.2f} | {seen['ttft_p50_seconds']:.2f} | {seen['ttft_p99_seconds']:.2f}"
        f" | {entry['load_average'][0]:.0f} | {entry['commit'][:7]} |"
        for name, entry in tests.items()
        if "requests" in (seen := entry["numbers"])
    ]
    columns = "test | requests | lost | wrong | worst gap, s | TTFT p50, s | TTFT p99, s | load average | commit"
    return "\n".join([f"| {columns} |", "|---|" + "---:|" * 8, *rows, ""])
