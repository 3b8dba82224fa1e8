"""Where compiled kernels are kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.caching import FunctionCache

from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel


def _double(values: Any) -> None:
    values[0] *= 2


def test_a_kernel_works_where_no_folder_can_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container whose files are read-only: compiled, not kept, and the log says what to set."""
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    values = np.array([3.0])

    kernel(_double)(values)

    assert values[0] == 6.0
    assert "compiled_not_kept" in caplog.text
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_of_processes_that_start_together_one_compiles(tmp_path: Path) -> None:
    """The others take the machine code from the folder; who calls others waits for nobody who waits for it."""
    source = """
import sys, types
import numpy as np
import baton.engine.runners

torch = sys.modules["baton.engine.runners.torch"] = types.ModuleType("torch")  # which takes seconds to import
torch.__path__ = [f"{baton.engine.runners.__path__[0]}/torch"]
from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel

def inner(values):
    values[0] *= 2

def outer(values):
    inner(values)
    values.sort()

inner = kernel(inner)
outer = kernel(outer)
for each in (inner, outer)[:: int(sys.argv[1])]:
    each(np.array([3.0]))
print(sum(sum(each.stats.cache_misses.values()) for each in (inner, outer)))
"""
    (tmp_path / "twice.py").write_text(source)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "twice.py"), order], env=environment, stdout=subprocess.PIPE, text=True
        )
        for order in ("1", "-1", "1")
    ]

    assert sum(int(process.communicate(timeout=120)[0]) for process in processes) == 2
