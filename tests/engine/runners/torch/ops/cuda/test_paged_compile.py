"""The kernels compile for Hopper without a GPU, and keep everything in registers."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from baton.engine.runners.torch.ops.cuda.paged_queries import Tiles, padded, tiles_for

triton = pytest.importorskip("triton", reason="triton is not installed: the extra cuda")


class Shape(NamedTuple):
    """Heads of a model that is served on GPUs."""

    name: str
    group: int
    head_dim: int
    max_queries: int
    dtype: torch.dtype = torch.bfloat16
    window_tokens: int = 0
    soft_cap: float = 0.0
    has_sinks: bool = False


COMMON = (
    Shape("Llama-3-8B decode", 4, 128, 1),
    Shape("Llama-3-8B prefill", 4, 128, 512),
    Shape("float32 prefill", 4, 128, 512, dtype=torch.float32),
)
OTHERS = (
    Shape("GPT-OSS prefill", 8, 64, 512, window_tokens=128, has_sinks=True),
    Shape("Gemma-2-9B decode", 2, 256, 1, soft_cap=50.0),
    Shape("Qwen3-0.6B decode", 2, 128, 1),
    Shape("Qwen3-0.6B prefill", 2, 128, 512),
    Shape("Llama-3.2-1B prefill", 4, 64, 512),
    Shape("Mistral-7B prefill", 4, 128, 512, window_tokens=4096),
    Shape("GPT-OSS decode", 8, 64, 1, window_tokens=128, has_sinks=True),
    Shape("Gemma-2-9B prefill", 2, 256, 512, window_tokens=4096, soft_cap=50.0),
    Shape("Phi-3-mini prefill", 1, 96, 512),
    Shape("float16 prefill", 4, 128, 512, dtype=torch.float16),
    Shape("float32 decode", 4, 128, 1, dtype=torch.float32),
    Shape("float32 wide prefill", 4, 256, 512, dtype=torch.float32),
)
SHAPES = COMMON + OTHERS if os.environ.get("BATON_KERNELS") == "all" else COMMON
_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
_FLOAT_POINTERS = ("part_outputs", "part_maxima", "part_sums", "parts", "highest")
_BETWEEN_POINTERS = (
    "heads",
    "cosines",
    "signed_sines",
    "query_norm",
    "key_norm",
    "queries",
    "gate_up",
    "hidden",
    "copies",
)
_SUM_POINTERS = ("delta", "weight", "total", "normalised", "rows", "again", "bias")
_LONG_POINTERS = ("slots", "chosen")
_DOUBLE_POINTERS = ("temperatures", "uniforms", "sums")
_INT_POINTERS = ("tables", "ends", "first_rows", "tile_sequences", "tile_first_queries")
_PACKED_POINTERS = ("words", "scales", "marks", "arrivals", "places")
_ALIGNED = ("row_stride", "query_row_stride", "query_head_stride", "key_head_stride", "value_head_stride")


def compiled(kernel: Any, constants: dict[str, object], dtype: torch.dtype, tiles: Tiles, cache: Path) -> Any:
    """Compile a kernel for sm_90a as a launch with aligned tensors would."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    pointers = {
        "query",
        "keys",
        "values",
        "output",
        "sinks",
        "logits",
        *_FLOAT_POINTERS,
        *_INT_POINTERS,
        *_PACKED_POINTERS,
    }
    pointers |= {*_BETWEEN_POINTERS, *_SUM_POINTERS, *_LONG_POINTERS, *_DOUBLE_POINTERS}
    signature = dict.fromkeys(names, "i32") | {name: _TYPES[dtype] for name in names if name in pointers}
    signature |= {name: "*fp32" for name in names if name in _FLOAT_POINTERS}
    signature |= {name: "*i32" for name in names if name in (*_INT_POINTERS, *_PACKED_POINTERS)}
    signature |= dict.fromkeys(constants, "constexpr") | {
        name: "fp32" for name in names if name in ("scaling", "epsilon")
    }
    signature |= {name: "*i64" for name in names if name in _LONG_POINTERS}
    signature |= {name: "*fp64" for name in names if name in _DOUBLE_POINTERS}
    attributes = {
        (index,): [["tt.divisibility", 16]] for index, name in enumerate(names) if name in pointers | {*_ALIGNED}
    }
    indexed = {(names.index(name),): value for name, value in constants.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
        source = ASTSource(kernel, signature, indexed, attributes)
        return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spilled_bytes(binary: Any, folder: Path) -> int:
    """Return the bytes that ptxas keeps in memory for want of registers."""
    ptxas = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
    source = folder / "kernel.ptx"
    source.write_text(binary.asm["ptx"])
    command = [str(ptxas), "-v", "-arch=sm_90a", str(source), "-o", str(folder / "kernel.cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True, timeout=500).stderr
    stores = [int(number) for number in re.findall(r"(\d+) bytes spill stores", report)]
    assert stores, report
    return sum(stores)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_attention_compiles_for_hopper_without_spills(shape: Shape, tmp_path: Path) -> None:
    """Tiles as they are chosen fit the registers and the shared memory of sm_90a, and prefill uses its tensor cores."""
    from baton.engine.runners.torch.ops.cuda.paged_kernel import attend_tile

    tiles = tiles_for(shape.dtype, group=shape.group, head_dim=shape.head_dim, max_queries=shape.max_queries)
    constants = {
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "VALUE_DIM": shape.head_dim,
        "BLOCK_TOKENS": 16,
        "PADDED_HEAD_DIM": padded(shape.head_dim),
        "PADDED_VALUE_DIM": padded(shape.head_dim),
        "TILE_QUERIES": tiles.queries,
        "TILE_ROWS": tiles.rows,
        "TILE_KEYS": tiles.keys,
        "IS_SPLIT": shape.max_queries == 1,
        "WINDOW": shape.window_tokens,
        "SOFT_CAP": shape.soft_cap,
        "HAS_SINKS": shape.has_sinks,
    }

    binary = compiled(attend_tile, constants, shape.dtype, tiles, tmp_path)

    assert spilled_bytes(binary, tmp_path) == 0
    assert binary.metadata.shared <= 227 * 1024
    if shape.max_queries > 1 and shape.dtype is not torch.float32:
        assert "wgmma" in binary.asm["ptx"]


def test_joining_splits_compiles_for_hopper_without_spills(tmp_path: Path) -> None:
    """So does the second kernel, with the most splits."""
    from baton.engine.runners.torch.ops.cuda.paged_kernel import join_splits

    constants = {"VALUE_DIM": 128, "PADDED_VALUE_DIM": 128, "MAX_SPLITS": 32, "HAS_SINKS": True}

    binary = compiled(join_splits, constants, torch.bfloat16, Tiles(1, 16, 16, 4, 1), tmp_path)

    assert spilled_bytes(binary, tmp_path) == 0


@pytest.mark.parametrize(
    ("name", "constants", "num_warps"),
    [
        ("rotate_and_store", {"NUM_HEADS": 16, "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "PADDED_DIM": 128}, 4),
        ("gate", {"SIZE": 14_336, "BLOCK": 1024}, 4),
        ("add_and_normalise", {"SIZE": 8192, "PADDED_SIZE": 8192}, 8),
    ],
)
def test_what_lies_between_products_compiles_for_hopper_without_spills(
    name: str, constants: dict[str, object], num_warps: int, tmp_path: Path
) -> None:
    """In the sizes of 8B to 70B models, heads normalised as Qwen3's are."""
    from baton.engine.runners.torch.ops.cuda import elementwise_kernel

    constants |= {"HAS_NORMS": True, "IS_COPIED": True, "TILE_ROWS": 8} if name == "rotate_and_store" else {}

    binary = compiled(
        getattr(elementwise_kernel, name), constants, torch.bfloat16, Tiles(1, 16, 16, num_warps, 1), tmp_path
    )

    assert spilled_bytes(binary, tmp_path) == 0


@pytest.mark.parametrize("name", ["weigh_chunks", "pick_tokens"])
def test_drawing_compiles_for_hopper_without_spills(name: str, tmp_path: Path) -> None:
    """In float64, from the vocabulary of Qwen3."""
    from baton.engine.runners.torch.ops.cuda import drawing_kernel

    constants = {"SIZE": 151_936, "NUM_CHUNKS": 75, "CHUNK": 2048}
    constants |= {"PADDED_CHUNKS": 128, "NOT_FINITE": -1} if name == "pick_tokens" else {}

    binary = compiled(getattr(drawing_kernel, name), constants, torch.bfloat16, Tiles(1, 16, 16, 8, 1), tmp_path)

    assert spilled_bytes(binary, tmp_path) == 0


@pytest.mark.parametrize(("bits", "num_rows"), [(4, 1), (4, 16), (4, 32), (8, 1)])
def test_products_by_packed_weights_compile_for_hopper_without_spills(bits: int, num_rows: int, tmp_path: Path) -> None:
    """Llama-3-8B's, tiled as they are served, whole numbers of 4 bits and 8-bit floats, by tensor cores."""
    from baton.engine.runners.torch.ops.cuda.packed_kernel import multiply
    from baton.engine.runners.torch.ops.cuda.packed_linear import constants_of, tiling_for
    from baton.engine.runners.torch.ops.cuda.packed_weight import Format, PackedWeight

    form = Format(4, 64, "affine", "bf16") if bits == 4 else Format(8, 128, "e4m3", "f32")
    words = torch.empty(4096 * bits // 32 // 32, 6144, 32, dtype=torch.int32, device="meta")
    weight = PackedWeight(words, words[0], 4096, form)
    tiling = tiling_for(num_rows, weight, torch.bfloat16, 132)

    constants = constants_of(weight, tiling, torch.bfloat16, has_bias=False)
    binary = compiled(multiply, constants, torch.bfloat16, Tiles(1, 8, 8, *tiling[3:5]), tmp_path)

    assert spilled_bytes(binary, tmp_path) == 0
    assert binary.metadata.shared <= 100 * 1024
    assert "mma" in binary.asm["ptx"]
