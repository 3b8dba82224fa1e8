"""One place chooses what a device does for a model; layers, batches and runners ask nothing of devices.

The rule: in `engine/runners/torch`, `ops` alone asks of which kind a device is, how many threads there are and which
kernels serve. `loader` asks what it was told to load onto. The modules of `_OWN_DEVICE` are for one kind of device, or
measure it. Everything else calls `DeviceOps`, which the loader has made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from house.repository import PACKAGE, sources_of

_ENGINE = PACKAGE / "engine" / "runners" / "torch"
_OWN_DEVICE = {
    "loader.py": "checks that the device of its options is there",
    "cuda_graph/capture.py": "captures CUDA graphs, where the operations can be captured",
    "tensor_parallel/ranks.py": "meets other ranks by the library of their devices",
}
_KINDS = {"is_cuda", "is_cpu", "is_mps", "is_one_thread", "get_num_threads", "num_threads"}
_CHECKS = {"ops.choose", "ops.cpu.checks", "ops.cpu.ops", "ops.cuda.ops"}
"""Modules that know which kernels serve."""
_CHOOSERS = {"loader.py"}


def predicates_in(path: Path) -> Iterator[str]:
    """Yield what a module asks of a device, each with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        named = ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""
        is_kind = named.rpartition(".")[2] in _KINDS and isinstance(getattr(node, "ctx", None), ast.Load)
        if is_kind or named.endswith("device.type") or named == "torch.cuda":
            yield f"{path.name}:{node.lineno}: {named}"


def choosers_in(path: Path) -> Iterator[str]:
    """Yield the imports of a module that tell which kernels serve."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if module.removeprefix("baton.engine.runners.torch.") in _CHECKS:
                    yield f"{path.name}:{node.lineno}: {module}"


def test_layers_have_no_predicates_of_devices() -> None:
    """A kernel for another device is a class beside `CpuOps` and `CudaOps`, and no change in a layer."""
    asked = [found for path in _layers(_OWN_DEVICE) for found in predicates_in(path)]

    assert asked == []


def test_the_loader_alone_has_the_operations_chosen() -> None:
    """Whoever else imports the choice, its checks or one of its outcomes could choose again, and otherwise."""
    assert [found for path in _layers(_CHOOSERS) for found in choosers_in(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "def f(x): return x.is_cuda",
        "def f(device): return device.type == 'cpu'",
        "def f(self): return self.device.type",
        "import torch\nx = torch.cuda.is_available()",
        "import torch\nx = torch.get_num_threads()",
    ],
)
def test_the_gate_sees_a_predicate(line: str, tmp_path: Path) -> None:
    """Whatever form it takes."""
    (tmp_path / "layer.py").write_text(line)

    assert len(list(predicates_in(tmp_path / "layer.py"))) == 1


def _layers(exempt: dict[str, str] | set[str]) -> Iterator[Path]:
    for path in sources_of(_ENGINE):
        place = path.relative_to(_ENGINE)
        if place.parts[0] != "ops" and str(place) not in exempt:
            yield path
