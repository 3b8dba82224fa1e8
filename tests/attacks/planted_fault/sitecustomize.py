"""Python imports this before anything else: plants a fault in the engine of a node, which a request sets off.

BATON_PLANTED_FAULT is what happens to passes that compute a sequence whose prompt begins with `TRIGGER`: "kill" ends
the process, "raise" the pass, "spoil" makes its logits NaN, "kill-late" ends the process at its tenth token. With
"@NODE" behind it, on that node alone. Nothing of this is in Baton: it has no faults to be switched on.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

TRIGGER = [509, 508]
_LATE_TOKENS = 10
_MODULE = "baton.engine.execution.pipeline"


class _Spoiled:
    """Launched passes of which some rows are NaN."""

    def __init__(self, launched: Any, rows: set[int], not_finite: int) -> None:
        self._launched, self._rows, self._not_finite = launched, rows, not_finite

    def tokens(self, step: int = 0) -> list[int]:
        chosen = self._launched.tokens(step)
        return [self._not_finite if row in self._rows else token for row, token in enumerate(chosen)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launched, name)


def _planted(launch: Callable[..., Any], fault: str, not_finite: int) -> Callable[..., Any]:
    def launch_or_fail(runner: Any, step: Any, *arguments: Any) -> Any:
        least = _LATE_TOKENS if fault == "kill-late" else 0
        bad = {
            each
            for each in step.sequences
            if each.token_ids[: len(TRIGGER)] == TRIGGER and each.num_output_tokens >= least
        }
        if bad and fault == "raise":
            raise RuntimeError("planted")
        if bad and fault != "spoil":
            os.kill(os.getpid(), signal.SIGKILL)
        runner.runs_ahead = runner.runs_ahead and fault != "spoil"
        launched = launch(runner, step, *arguments)
        if bad:
            rows = {row for sequence, row in step.sampled if sequence in bad}
            launched = launched._replace(launched=_Spoiled(launched.launched, rows, not_finite))
        return launched

    return launch_or_fail


class _Planting(importlib.abc.MetaPathFinder):
    """Finds the one module, and changes it when it has been loaded."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_plant(module: ModuleType) -> None:
            execute(module)
            from baton.engine.runners.base import NOT_FINITE  # before this module it would be imported too early

            module.launch = _planted(module.launch, self._fault, NOT_FINITE)  # type: ignore[attr-defined]

        spec.loader.exec_module = execute_and_plant  # type: ignore[method-assign]
        return spec


def _plant(fault: str, node: str) -> None:
    arguments = sys.argv if hasattr(sys, "argv") else sys.orig_argv
    if not node or any(node in each for each in (*arguments, *sys.orig_argv)):
        sys.meta_path.insert(0, _Planting(fault))


if os.environ.get("BATON_PLANTED_FAULT"):
    _fault, _, _node = os.environ["BATON_PLANTED_FAULT"].partition("@")
    _plant(_fault, _node)
