"""Weights that stay in few bits: products are those of the same weights unpacked, and memory is the file's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from baton.engine.checkpoint.quantization import Affine, Quantization
from baton.engine.checkpoint.tensor_files import stored_tensors
from baton.engine.checkpoint.weights import ALL, Weight, read_weights
from baton.engine.runners.torch import load_torch_runner
from baton.engine.runners.torch.llama.model import LlamaModel
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.cpu.affine import AffineLinear, PackedEmbedding, joined
from baton.engine.runners.torch.ops.eager.linear import PACKED
from baton.kv.kv_format import KvDtype
from order import RUNS_ALL
from packed_checkpoints import Affine as Kind
from packed_checkpoints import affine_pair

NUM_INPUTS = 256


def packed_weight(
    folder: Path, bits: int, group_size: int, scales: torch.dtype, *, num_outputs: int = 200, seed: int = 0
) -> Weight:
    """Return a random packed weight [num_outputs, 256] from a file."""
    generator = torch.Generator().manual_seed(seed)
    file, groups = folder / f"{bits}-{group_size}-{seed}.safetensors", (num_outputs, NUM_INPUTS // group_size)
    words = torch.randint(0, 1 << 32, (num_outputs, NUM_INPUTS * bits // 32), generator=generator)
    tensors = {"a.weight": words.to(torch.uint32)}
    tensors |= {f"a.{part}": torch.randn(groups, generator=generator).to(scales) for part in ("scales", "biases")}
    save_file(tensors, file)
    return read_weights(stored_tensors(file), Quantization(Affine(group_size, bits), {}))["a.weight"]


def module_of(weight: Weight, dtype: torch.dtype, *, has_bias: bool) -> torch.nn.Linear:
    """Return a projection as the loader leaves it."""
    module = torch.nn.Linear(NUM_INPUTS, weight.shape[0], bias=has_bias, dtype=dtype).requires_grad_(False)
    module.weight = torch.nn.Parameter(torch.zeros((), dtype=dtype).expand(weight.shape), requires_grad=False)
    setattr(module, PACKED, weight)
    return module


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128] if RUNS_ALL else [64])
@pytest.mark.parametrize("scales", [torch.bfloat16, torch.float16] if RUNS_ALL else [torch.bfloat16])
@pytest.mark.parametrize(("dtype", "max_error"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)])
def test_products_are_those_of_the_weights_unpacked(
    bits: Literal[4, 8], group_size: int, scales: torch.dtype, dtype: torch.dtype, max_error: float, tmp_path: Path
) -> None:
    """Of one row, some, and so many that parts of the weight are unpacked; biases are added."""
    weight = packed_weight(tmp_path, bits, group_size, scales)
    module = module_of(weight, dtype, has_bias=True)
    linear = choose_ops(torch.device("cpu"), dtype).linear([module])
    unpacked = torch.from_numpy(weight.read(ALL)).double()

    assert isinstance(linear, AffineLinear)
    for num_rows in (0, 1, 3, 16, 17, 70):
        rows = torch.randn(num_rows, NUM_INPUTS).to(dtype)
        expected = rows.double() @ unpacked.T + module.bias.double()
        result = linear(rows)

        assert result.dtype == dtype
        assert num_rows == 0 or float((result.double() - expected).abs().max() / expected.abs().max()) < max_error


@pytest.mark.parametrize("num_outputs", [64, 96, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_unpacked_where_onednn_reads_them(dtype: torch.dtype, num_outputs: int, tmp_path: Path) -> None:
    """Into panels of whatever width it has here, by a team of threads; the last panel may have outputs of nobody."""
    weight = packed_weight(tmp_path, 4, 64, torch.bfloat16, num_outputs=num_outputs)
    linear = AffineLinear(torch.empty(weight.shape, dtype=dtype), None, joined([weight]), 3, dtype)
    rows = torch.randn(40, NUM_INPUTS).to(dtype)
    expected = rows @ torch.from_numpy(weight.read(ALL)).to(dtype).T

    result = linear(rows)

    torch.testing.assert_close(result, expected, rtol=0.02, atol=float(expected.abs().max()) * 1e-2)


def test_projections_of_several_kinds_lie_side_by_side(tmp_path: Path) -> None:
    """Those of 4 bits in one array, those of 8 in another, and one that is not packed."""
    weights = [
        packed_weight(tmp_path, bits, 64, torch.bfloat16, seed=bits + index) for index, bits in enumerate((4, 4, 8))
    ]
    modules = [module_of(weight, torch.float32, has_bias=False) for weight in weights]
    modules.append(torch.nn.Linear(NUM_INPUTS, 24, bias=False).requires_grad_(False))
    whole = torch.cat([*(torch.from_numpy(weight.read(ALL)) for weight in weights), modules[-1].weight])
    rows = torch.randn(5, NUM_INPUTS)

    result = choose_ops(torch.device("cpu"), torch.float32).linear(modules)(rows)

    torch.testing.assert_close(result, rows @ whole.T, rtol=1e-5, atol=1e-3)


def test_threads_share_out_a_large_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each computes some outputs; the last has fewer."""
    monkeypatch.setattr("baton.engine.runners.torch.ops.cpu.linear._SHARED_WEIGHTS", 1)
    weight = packed_weight(tmp_path, 4, 64, torch.bfloat16)
    assert weight.packed is not None
    like, bias, rows = torch.empty(weight.shape), torch.randn(200), torch.randn(3, NUM_INPUTS)

    alone, shared = (AffineLinear(like, bias, joined([weight]), count, like.dtype)(rows) for count in (1, 3))

    assert torch.equal(alone, shared)


def test_an_embedding_is_read_from_its_file(tmp_path: Path) -> None:
    """Rows of the tokens that are asked for, to the last bit."""
    weight = packed_weight(tmp_path, 4, 64, torch.bfloat16)

    rows = PackedEmbedding(weight, torch.float32)(torch.tensor([5, 199, 5]))

    assert np.array_equal(rows.numpy(), weight.read(ALL)[[5, 199, 5]])


def test_a_model_takes_the_memory_of_its_file() -> None:
    """Weights that every pass reads, and the cost model's idea of them, are in 4 bits with scales of 16."""
    packed, unpacked = affine_pair("wide_llama", Kind(4, 64))
    runner = load_torch_runner(packed, model_id="m", num_blocks=1, num_threads=1)
    whole = load_torch_runner(unpacked, model_id="m", num_blocks=1, num_threads=1)
    model = runner._model
    assert isinstance(model, LlamaModel)
    num_bytes = sum(memory.num_bytes for memory in model.memory())

    assert num_bytes <= 1.1 * (runner.info.num_linear_parameters + runner.info.num_head_parameters) * 4.5 / 8
    assert runner.info.weight_bytes < 0.2 * whole.info.weight_bytes
    assert runner.info.layout == whole.info.layout
    assert runner.info.layout.dtype is KvDtype.FLOAT32
