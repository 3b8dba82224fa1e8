"""The limit of open files."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import resource
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from baton.gateway.http.server import raise_open_files_limit
print(raise_open_files_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard > 64)
"""


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    """As far as the system grants without privileges."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300)

    assert done.stdout == "True\n", done.stderr
