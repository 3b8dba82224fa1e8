"""One place chooses: by the kind of device, the threads that torch has, and the kernels that serve."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.quantization import Affine
from baton.engine.checkpoint.tensor_files import StoredTensor
from baton.engine.checkpoint.weights import PackedRows
from baton.engine.runners.torch.ops import choose
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.cpu import checks
from baton.engine.runners.torch.ops.cpu.ops import CpuOps, OneThreadOps
from baton.engine.runners.torch.ops.cuda.ops import CudaOps, TritonOps
from baton.engine.runners.torch.ops.cuda.packed_weight import can_hold
from baton.engine.runners.torch.ops.device_ops import DeviceOps

CPU = torch.device("cpu")


@pytest.mark.parametrize(("num_threads", "expected"), [(1, OneThreadOps), (2, CpuOps)])
def test_kernels_of_layers_serve_one_thread(
    num_threads: int, expected: type[DeviceOps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know no other, where more are to compute."""
    if not checks.can_stream_transposed(torch.float32):
        pytest.skip("the kernels are off here")
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)

    assert type(choose_ops(CPU, torch.float32)) is expected


def test_kernels_that_are_wrong_here_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own operations are left then, and the log has said why."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for check in ("is_sound", "can_attend", "can_multiply", "can_stream_transposed"):
        monkeypatch.setattr(checks, check, lambda _: False)
    monkeypatch.setattr(checks, "can_attend_prompts", lambda: False)

    ops = choose_ops(CPU, torch.float32)

    assert type(ops) is CpuOps
    assert ops.weights_cause == "as loaded: oneDNN failed its check"
    assert ops.decode_step([], ops.linear([torch.nn.Linear(4, 4)])) is None


def test_other_devices_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's kernels run on a CPU where Triton interprets them; a device of which nothing is known has torch's."""
    assert type(choose_ops(torch.device("cuda"), torch.bfloat16)) is CudaOps
    assert type(choose_ops(torch.device("meta"), torch.float32)) is DeviceOps

    monkeypatch.setattr(choose, "IS_INTERPRETED", True)

    assert type(choose_ops(CPU, torch.float32)) is TritonOps


def test_cuda_multiplies_float32_as_such() -> None:
    """Rotary angles are products of positions: in TF32, which some images make the default, they would be wrong."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        CudaOps(torch.device("cuda"))

        assert not products.allow_tf32
        assert not convolutions.allow_tf32
    finally:
        products.allow_tf32, convolutions.allow_tf32 = before


@pytest.mark.parametrize(("group_size", "is_held"), [(64, True), (128, True), (1056, False), (96, False), (8, False)])
def test_groups_that_blocks_do_not_divide_are_unpacked(group_size: int, is_held: bool) -> None:
    """One scale a channel would be read past its end where the inputs do not fill the last block."""
    scales, words = StoredTensor(Path(), "F16", (64, 1), 0), StoredTensor(Path(), "U32", (64, 132), 0)

    assert can_hold(PackedRows(words, scales, None, Affine(group_size, 4))) is is_held
