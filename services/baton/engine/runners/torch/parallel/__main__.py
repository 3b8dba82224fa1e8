"""Runs a rank as `python -m baton.engine.runners.torch.parallel FD`, FD being its connection to the first one."""

from __future__ import annotations

import sys

from baton.engine.runners.torch.parallel.follower import follow

if __name__ == "__main__":
    follow(int(sys.argv[1]))
