"""The table of a campaign against mutants."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from house.repository import ROOT
from mutants.areas import AREAS
from mutants.campaign import Verdict
from mutants.judged import EQUIVALENT, SURVIVED


def verdict_of(verdict: Verdict) -> str:
    """Return "caught", "survived" or "equivalent"."""
    if verdict.caught_by:
        return "caught"
    return "equivalent" if verdict.mutant.name in EQUIVALENT else "survived"


def commit_of_tree() -> str:
    """Return the commit that is checked out."""
    command = ("git", "rev-parse", "--short=8", "HEAD")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def report_of(verdicts: Sequence[Verdict], seed: int, commit: str) -> str:
    """Return a document: counts per area, each mutant, and what became of those that survived once."""
    lines = [
        "# Mutants",
        "",
        f"{len(verdicts)} mutants drawn with seed {seed} at commit {commit} (`tests/mutants`, of `make matrix`):",
        "of each, the tests that run its lines, the fastest first, until one fails. Counted as caught is only what a",
        "test catches that passes without the mutant.",
        "",
        "| part | mutants | caught | equivalent | survived |",
        "|---|---|---|---|---|",
        *(_count(area, [verdict for verdict in verdicts if verdict.area == area]) for area in AREAS),
        _count("all", verdicts),
        "",
        "| part | where | mutant | verdict | by |",
        "|---|---|---|---|---|",
        *map(_row, verdicts),
        "",
        "## Those that survived a first run",
        "",
        *(f"- `{_shown(name)}`: {test}" for name, test in SURVIVED.items()),
        "",
        "## Equivalent ones",
        "",
        *(f"- `{_shown(name)}`: {reason}" for name, reason in EQUIVALENT.items()),
    ]
    return "\n".join(lines) + "\n"


def _count(name: str, verdicts: Sequence[Verdict]) -> str:
    found = [verdict_of(verdict) for verdict in verdicts]
    numbers = (found.count(kind) for kind in ("caught", "equivalent", "survived"))
    return f"| {name} | {len(found)} | {' | '.join(map(str, numbers))} |"


def _row(verdict: Verdict) -> str:
    mutant = verdict.mutant
    place = f"{mutant.path.removeprefix('services/baton/')}:{mutant.line} {mutant.function}"
    change = f"`{_short(mutant.before)}` → `{_short(mutant.after)}`"
    test = verdict.caught_by.rpartition("/")[2]
    return f"| {verdict.area} | {place} | {change} | {verdict_of(verdict)} | {_shown(test[:110])} |"


def _short(text: str) -> str:
    return _shown(text if len(text) <= 70 else f"{text[:67]}...")


def _shown(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
