"""Files of results: where and from what they came, in JSON that a person can look through and a diff can show."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_LINE_CHARACTERS = 120


def write_results(path: Path, results: Mapping[str, object]) -> None:
    """Write results as JSON: each on a line, or, where it is longer than a line, each of its rows or entries."""
    entries = (f" {json.dumps(name)}: {_spread(value)}" for name, value in results.items())
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def describe_machine() -> dict[str, object]:
    """Return the client's machine and the commit of this checkout; no name and no path of the machine."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "is_modified": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }


def _spread(value: object) -> str:
    text = json.dumps(value)
    if len(text) <= _LINE_CHARACTERS or not isinstance(value, Mapping | list | tuple):
        return text
    if isinstance(value, Mapping):
        rows, marks = [f"{json.dumps(str(name))}: {json.dumps(entry)}" for name, entry in value.items()], "{}"
    else:
        rows, marks = [json.dumps(row) for row in value], "[]"
    return f"{marks[0]}\n  " + ",\n  ".join(rows) + f"\n {marks[1]}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
