"""The table and the file of a campaign."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from system.kv_faults.campaign import DEADLINE_SECONDS, SILENCE_SECONDS, Campaign, Result

OUTCOMES = ("unharmed", "complete", "same node", "other node", "computed here", "re-placed")


def table_of(results: Sequence[Result]) -> str:
    """Return a row per kind of fault: how many, what took over, and the times from the fault to the last token."""
    head = f"{'fault':<14}{'n':>5}" + "".join(f"{outcome:>15}" for outcome in OUTCOMES) + f"{'p50 ms':>9}{'p99 ms':>9}"
    kinds = dict.fromkeys(result.kind for result in results)
    rows = [_row(kind, [result for result in results if result.kind == kind]) for kind in kinds]
    return "\n".join([head, *rows, _row("all", results)])


def write_results(path: Path, campaign: Campaign, resident: Sequence[int]) -> None:
    """Write the samples of a campaign, beside those of other transports that the file has."""
    settings = {"deadline_seconds": DEADLINE_SECONDS, "silence_seconds": SILENCE_SECONDS, "seed": campaign.seed}
    document = described_run(path, settings)
    document.setdefault("transports", {})[campaign.transport] = {
        "fault_count": len(campaign.results),
        "not_reached_count": campaign.num_missed,
        "resident_bytes": list(resident),
        "samples": {
            kind: [
                [result.index, result.outcome, round(result.recovery_seconds, 4)]
                for result in campaign.results
                if result.kind == kind
            ]
            for kind in dict.fromkeys(result.kind for result in campaign.results)
        },
    }
    lines = json.dumps(document, separators=(",", ":")).replace('},"', '},\n"').replace(']],"', ']],\n"')
    path.write_text(lines + "\n")


def described_run(path: Path, settings: dict[str, float]) -> dict[str, Any]:
    """Return what a file has of a run, if it exists, with what the run was."""
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    commit = subprocess.run(("git", "rev-parse", "HEAD"), capture_output=True, text=True, check=True).stdout.strip()
    machine = {"system": platform.system(), "processor": platform.machine(), "cores": psutil.cpu_count()}
    return document | {"commit": commit, "machine": machine, "settings": settings}


def _row(name: str, results: Sequence[Result]) -> str:
    counts = Counter(result.outcome for result in results)
    assert set(counts) <= set(OUTCOMES)
    milliseconds = [1000 * result.recovery_seconds for result in results]
    cells = "".join(f"{counts[outcome]:>15}" for outcome in OUTCOMES)
    return f"{name:<14}{len(results):>5}{cells}{quantile(milliseconds, 0.5):>9.0f}{quantile(milliseconds, 0.99):>9.0f}"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]
