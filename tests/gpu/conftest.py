"""Skips the folder where there is no GPU, and says in what order its tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu.device import DEVICE, IS_THERE

_FOLDER = Path(__file__).parent
_FIRST = ("soak", "kernels", "tokens", "graphs", "bfloat16", "copies")
"""What a run that is cut short is to have told of. The soak takes longest: elsewhere it would be what is cut."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip with a reason, and put first what matters most; what else is collected is none of this folder's business."""
    missing = pytest.mark.skip(reason="torch sees no CUDA device; BATON_GPU_DEVICE=cpu tries the tests themselves")
    for item in items:
        if _FOLDER in item.path.parents and not IS_THERE:
            item.add_marker(missing)
    places = [place for place, item in enumerate(items) if _FOLDER in item.path.parents]
    for place, item in zip(places, sorted((items[place] for place in places), key=_rank), strict=True):
        items[place] = item


def _rank(item: pytest.Item) -> int:
    name = item.path.stem.removeprefix("test_")
    return _FIRST.index(name) if name in _FIRST else len(_FIRST) + (name == "kv_stream")


@pytest.fixture(scope="session", autouse=True)
def references_on_the_device() -> None:
    """Have transformers compute where Baton does, in true float32."""
    if IS_THERE:
        import torch

        from checkpoints import compute_references_on

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        compute_references_on(DEVICE)
