"""Programs that measure servers, run as their users run them: a command, and the file that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from features import expect_true

NUM_REQUESTS = 8
OUTPUT_TOKENS = 8
_LIMIT_SECONDS = 400.0


def run_program(name: str, arguments: Sequence[str], folder: str, *, is_offline: bool = True) -> None:
    """Run a program of this environment until it ends.

    Raises:
        AssertionError: If it fails; the message has the last of its output.
    """
    environment = dict(os.environ)
    if not is_offline:
        del environment["HF_HUB_OFFLINE"]
    program = Path(sys.executable).with_name(name)
    done = subprocess.run(
        (str(program), *arguments),
        cwd=folder,
        env={**environment, "COLUMNS": "200", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    words = [word for word in done.stdout.split() if word.isascii()]  # not the frames of their boxes
    expect_true(done.returncode == 0, f"exit status {done.returncode}: {' '.join(words)[-350:]}")


def read_json(path: Path) -> Any:
    """Return what a program wrote.

    Raises:
        AssertionError: If it wrote nothing.
    """
    expect_true(path.exists(), f"the program wrote no {path.name}")
    return json.loads(path.read_text())
