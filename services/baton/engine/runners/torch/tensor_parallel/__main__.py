"""Runs a rank: `python -m baton.engine.runners.torch.tensor_parallel FD`, FD being its connection to the first."""

from __future__ import annotations

import sys

from baton.engine.runners.torch.tensor_parallel.follower import follow

if __name__ == "__main__":
    follow(int(sys.argv[1]))
