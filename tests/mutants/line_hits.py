"""A plugin of pytest that notes which lines of some modules each test runs, and how long it takes.

BATON_LINE_HITS names a JSON file: `{"modules": [path, ...]}` before, relative to the repository; afterwards also
`{"tests": {node id: {"seconds": ..., "is_passed": ..., "lines": {path: [line, ...]}}}}`. What other processes run is
not seen.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest


class LineHits:
    """Traces the modules, thread by thread, while a test runs."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._document: dict[str, Any] = json.loads(file.read_text())
        self._modules = {str(root / path): path for path in self._document["modules"]}
        self._hits: set[tuple[str, int]] = set()
        self._tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Trace a test with its fixtures."""
        self._hits = set()
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            lines: dict[str, list[int]] = {}
            for name, line in sorted(self._hits):
                lines.setdefault(self._modules[name], []).append(line)
            self._tests.setdefault(item.nodeid, {"seconds": 0.0, "is_passed": True})["lines"] = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a part of a test went."""
        test = self._tests.setdefault(report.nodeid, {"seconds": 0.0, "is_passed": True})
        test["seconds"] += report.duration
        test["is_passed"] = test["is_passed"] and report.passed

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        self._file.write_text(json.dumps(self._document | {"tests": self._tests}))

    def _enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return self._line if frame.f_code.co_filename in self._modules else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line":
            self._hits.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line


def pytest_configure(config: pytest.Config) -> None:
    """Watch if asked to."""
    if "BATON_LINE_HITS" in os.environ:
        config.pluginmanager.register(LineHits(Path(os.environ["BATON_LINE_HITS"]), config.rootpath))
