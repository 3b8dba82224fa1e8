"""Skips the folder where there is no GPU, and keeps what its tests measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.device import DEVICE, IS_THERE

_FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with a reason; what else is collected is none of this folder's business."""
    missing = pytest.mark.skip(reason="torch sees no CUDA device; BATON_GPU_DEVICE=cpu tries the tests themselves")
    for item in items:
        if _FOLDER in item.path.parents and not IS_THERE:
            item.add_marker(missing)


@pytest.fixture(scope="session", autouse=True)
def references_on_the_device() -> None:
    """Have transformers compute where Baton does, in true float32."""
    if IS_THERE:
        import torch

        from checkpoints import compute_references_on

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        compute_references_on(DEVICE)
