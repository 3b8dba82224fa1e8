"""Where compiled kernels are kept."""

from __future__ import annotations

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
