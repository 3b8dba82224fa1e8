"""Histories one after the other, each checked, counted and kept."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from house.repository import ROOT
from system.histories.checker import Violation, violations
from system.histories.recording import History
from system.histories.scene import Script


@dataclass
class Tally:
    """What a campaign has come to."""

    seed: str
    """Of which the scripts are drawn."""
    broken: dict[int, list[Violation]] = field(default_factory=dict)
    """Promises broken, by number of the history."""
    num_histories: int = 0
    """Checked."""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    """What was seen, by fault; a history with several counts for each."""

    def take(self, script: Script, history: History, folder: Path | None) -> None:
        """Check a history, and keep it if there is a folder or a promise was broken."""
        number, self.num_histories = self.num_histories, self.num_histories + 1
        if found := violations(history.events):
            self.broken[number] = found
        if folder is not None:
            (folder / f"{number:03}.jsonl").write_text(history.lines())
        kinds = Counter[str](event["event"] for event in history.events)
        seen = {
            "histories": 1,
            "streams": kinds["asked"],
            "tokens": sum(len(event["tokens"]) for event in history.events if event["event"] == "output"),
            "moved": sum(event.get("attempts", 1) > 1 for event in history.events),
            "errors allowed": kinds["failed"] - sum(each.rule in ("error", "form") for each in found),
            "violations": len(found),
        }
        for name in {f"{fault.kind} {fault.process.rstrip('-01')}" for fault in script.faults}:
            self.counts.setdefault(name, Counter()).update(seen)

    def table(self) -> str:
        """Return a row per fault."""
        columns = ("histories", "streams", "tokens", "moved", "errors allowed", "violations")
        rows = [f"| fault | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for name, counts in sorted(self.counts.items()):
            rows.append(f"| {name} | {' | '.join(str(counts[column]) for column in columns)} |")
        return "\n".join(rows)

    def report(self, planted: Sequence[str]) -> str:
        """Return the document of a campaign."""
        command = ("git", "rev-parse", "--short=8", "HEAD")
        commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        lines = [
            "# Histories of clients",
            "",
            f"{self.num_histories} histories, seed `{self.seed}`, commit {commit} (`tests/system/histories`, of",
            "`make matrix`): two to four clients of both APIs beside one to four faults of a cluster of two",
            "prefill and two decode nodes (mocks), checked by what clients are promised alone. `moved`: generations",
            "told over gRPC that took more than one attempt. A history with several faults counts for each.",
            "",
            f"Histories with a broken promise: {len(self.broken)}.",
            "",
            self.table(),
            "",
            "Broken on purpose in the gateway, and found: " + ("; ".join(planted) or "not tried") + ".",
        ]
        return "\n".join(lines) + "\n"
