"""Runs the command line as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping


def baton(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `baton` with arguments to its end."""
    return subprocess.run(
        [sys.executable, "-m", "baton.cli", *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
