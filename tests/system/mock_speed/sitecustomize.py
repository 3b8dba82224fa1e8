"""Python imports this before anything else: a mock whose device changes its speed when it gets SIGUSR1.

BATON_MOCK_SPEEDS has "FLOP/s,bytes/s" before and after, with a space between; `--mock-hardware changing` is that
device.
"""

from __future__ import annotations

import os
import signal
from typing import Any


def _change(before: str, after: str) -> None:
    from baton.capacity.hardware import PRESETS, Hardware
    from baton.engine.runners.mock.runner import MockRunner

    was, will_be = (Hardware("changing", *map(float, speed.split(","))) for speed in (before, after))
    make, runners = MockRunner.__init__, list[MockRunner]()

    def make_noted(runner: MockRunner, *arguments: Any, **options: Any) -> None:
        make(runner, *arguments, **options)
        runners.append(runner)

    def change(*_: object) -> None:
        for runner in runners:
            runner.hardware = will_be

    PRESETS[was.name] = was
    MockRunner.__init__ = make_noted  # type: ignore[method-assign]
    signal.signal(signal.SIGUSR1, change)


if os.environ.get("BATON_MOCK_SPEEDS"):
    _change(*os.environ["BATON_MOCK_SPEEDS"].split())
