"""Runs the command line as a user does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout

import pytest

from baton.cli.main import main

_TERMINAL = {"NO_COLOR": "1", "COLUMNS": "200"}


def baton(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `baton` with arguments to its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "baton.cli", *arguments],
        env={**os.environ, **_TERMINAL, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def baton_here(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `baton` with arguments to its end in this process, which spares a start where no other would be started."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["baton", *arguments])
        for name, value in {**_TERMINAL, "GRPC_VERBOSITY": "NONE", **(environment or {})}.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main()
    status = ended.value.code
    assert isinstance(status, int)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())
