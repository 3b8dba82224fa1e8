"""Weights are the numbers that the format's own library computes with, and their digest is blind to the container."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from baton.engine.checkpoint.engine_support import check_mlx_computes
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.checkpoint.quantization import Affine as Packing
from baton.engine.checkpoint.quantization import unpack_codes
from baton.engine.checkpoint.weights import ALL, Weight, weights_digest
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype
from checkpoints import checkpoint
from packed_checkpoints import HUB_FORMATS, MICRO_MODES, Affine, affine, affine_pair, pair, unpacked_affine

mx = pytest.importorskip("mlx.core")

KINDS = [Affine(bits, size) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 64, 128)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.bits}-{kind.group_size}")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_not_one_weight_differs_from_those_that_mlx_computes_with(kind: Affine, dtype: str) -> None:
    """All bits and groups, with scales of either half precision, to the last bit of float32."""
    weight = mx.random.normal((96, 512), key=mx.random.key(3)).astype(getattr(mx, dtype))
    words, scales, biases = mx.quantize(weight, group_size=kind.group_size, bits=kind.bits)
    parts = [np.array(part.astype(mx.float32)) for part in (scales, biases)]
    wide = [part.astype(mx.float32) for part in (scales, biases)]
    expected = np.array(mx.dequantize(words, *wide, group_size=kind.group_size, bits=kind.bits))

    unpacked = Packing(kind.group_size, kind.bits).unpack(np.array(words), *parts)

    assert np.array_equal(unpacked.view(np.uint32), expected.view(np.uint32))


def test_codes_are_one_stream_of_bits_the_lowest_first() -> None:
    """Three bits of a code lie across two bytes."""
    codes = np.arange(16, dtype=np.uint8) % 8
    stream = sum(int(code) << 3 * place for place, code in enumerate(codes))

    assert unpack_codes(np.frombuffer(stream.to_bytes(6, "little"), np.uint8), 3).tolist() == codes.tolist()


@pytest.mark.parametrize("name", ["wide_llama", "qwen3_moe", "mixtral"])
def test_a_digest_is_that_of_the_function_whatever_holds_it(name: str, tmp_path: Path) -> None:
    """Packed, unpacked in float32, and as transformers saves it again: one digest, sampled or full."""
    packed, unpacked = affine_pair(name, Affine(4, is_mixed=True))  # type: ignore[arg-type]
    AutoModelForCausalLM.from_pretrained(unpacked, dtype=torch.float32).save_pretrained(tmp_path)
    folders = [read_checkpoint(folder) for folder in (packed, unpacked, tmp_path)]

    assert len({folder.weights_digest() for folder in folders}) == 1
    assert len({folder.weights_digest(is_full=True) for folder in folders}) == 1
    assert folders[0].weights_digest() != read_checkpoint(checkpoint(name)).weights_digest()  # type: ignore[arg-type]


def test_bfloat16_and_its_copy_in_float32_are_one_model(tmp_path: Path) -> None:
    """What is rounded to compute with it is not asked; what was rounded before is another model."""
    source = checkpoint("llama")
    folders = {}
    for dtype in (torch.bfloat16, torch.float32):
        folder = copytree(source, tmp_path / str(dtype))
        tensors = load_file(source / "model.safetensors")
        rounded = {name: tensor.bfloat16().to(dtype) for name, tensor in tensors.items()}
        save_file(rounded, folder / "model.safetensors")
        folders[dtype] = read_checkpoint(folder).weights_digest()

    assert folders[torch.bfloat16] == folders[torch.float32] != read_checkpoint(source).weights_digest()


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_one_flipped_code_is_another_model(part: str, tmp_path: Path) -> None:
    """So is a scale, and a bias."""
    folder = affine("llama", Affine(4), tmp_path)
    before = read_checkpoint(folder).weights_digest(is_full=True)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[f"model.layers.1.mlp.down_proj.{part}"].view(torch.uint8)[17, 1] ^= 1
    save_file(tensors, file, {"format": "mlx"})

    assert read_checkpoint(folder).weights_digest(is_full=True) != before


def test_a_sample_reads_few_rows_and_the_whole_reads_all() -> None:
    """Sixteen rows of a large tensor, one of an expert's, and every element of a small one."""
    read: list[int] = []

    def weight(num_rows: int) -> Weight:
        values = np.arange(num_rows * 512, dtype=np.float32).reshape(num_rows, 512)

        def rows(chosen: object) -> np.ndarray:
            read.append(len(values[chosen]))  # type: ignore[index]
            return values[chosen]  # type: ignore[index,no-any-return]

        return Weight((num_rows, 512), "F32", rows)

    weights = {"a": weight(1000), "model.experts.3.w1.weight": weight(1000), "b": weight(8)}
    weights_digest({}, (), weights, is_tied=False)
    weights_digest({}, (), weights, is_tied=False, is_full=True)

    assert read == [16, 8, 1, 1000, 8, 1000]


def test_an_unknown_mode_is_refused_with_what_is_served(tmp_path: Path) -> None:
    """A format of MLX whose numbers are not those of affine codes."""
    folder = affine("llama", Affine(4), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"]["mode"] = "mxfp5"
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigurationError, match="quantization: expected mode affine"):
        read_checkpoint(folder)


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("fp8", {"quant_method": "hqq"}, r"quant_method: expected one of mxfp4, fp8, .*, got 'hqq': take the model in"),
        ("fp8", {"weight_block_size": None}, r".*weight_scale_inv: \(.*\) is not served: take the model in"),
        ("fp8", {"weight_block_size": [64, 64]}, r"weight_block_size: \[64, 64\] is not served: take the model in"),
        ("awq", {"bits": 8}, "bits: expected 4, got 8"),
        ("awq", {"version": "gemv"}, "version: gemv is not served"),
        ("gptq", {"desc_act": True}, "desc_act: True is not served"),
        ("gptq", {"bits": 3}, "bits: 3 is not served"),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}, "format: expected pack-quantized"),
        ("compressed-tensors", {"config_groups": {}}, "config_groups: 0 groups is not served"),
        ("compressed-tensors", {"quant_method": "awq", "bits": 4}, None),
    ],
)
def test_what_is_not_served_is_named_before_anything_is_read(
    method: str, change: dict[str, object], message: str | None, tmp_path: Path
) -> None:
    """With what to take in its place; `None`: another method's tensors stay nobody's and are missing at the load."""
    folder = copytree(pair("wide_llama", method)[0], tmp_path / "copy")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= change
    (folder / "config.json").write_text(json.dumps(config))

    if message is None:
        assert "model.layers.0.mlp.up_proj.weight" not in read_checkpoint(folder).weights
        return
    with pytest.raises(ConfigurationError, match=rf"quantization_config\.{message}"):
        read_checkpoint(folder)


def test_inputs_in_another_order_are_refused(tmp_path: Path) -> None:
    """GPTQ by activations says so in a tensor, whatever its configuration says."""
    folder = copytree(pair("wide_llama", "gptq")[0], tmp_path / "copy")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.2.self_attn.o_proj.g_idx"
    save_file(tensors | {name: tensors[name].flip(0)}, folder / "model.safetensors", {"format": "pt"})

    with pytest.raises(ConfigurationError, match=rf"{name}: inputs in the order of activations is not served"):
        read_checkpoint(folder)


@pytest.mark.parametrize("method", HUB_FORMATS)
def test_formats_of_hubs_are_for_torch(method: str) -> None:
    """mlx-lm would round some of them again."""
    checkpoint = read_checkpoint(pair("wide_llama", method)[0])

    with pytest.raises(ConfigurationError, match=r"in MLX's format, or serve it by torch"):
        check_mlx_computes(checkpoint)


@pytest.mark.parametrize("kind", [*HUB_FORMATS, *MICRO_MODES])
def test_not_one_weight_differs_from_the_definition(kind: str) -> None:
    """Of every tensor, whole and by rows; the digest is that of the same unpacked."""
    packed, unpacked = (read_checkpoint(folder) for folder in pair("wide_llama", kind))
    chosen = np.array([3, 0, 7])
    for name, weight in unpacked.weights.items():
        whole = packed.weights[name].read(ALL)
        assert np.array_equal(whole, weight.read(ALL)), name
        assert weight.num_rows < 8 or np.array_equal(packed.weights[name].read(chosen), whole[chosen]), name

    assert packed.weights.keys() == unpacked.weights.keys()
    assert packed.weights_digest(is_full=True) == unpacked.weights_digest(is_full=True)


def test_gpt_oss_is_one_model_as_openai_packs_it_and_unpacked() -> None:
    """Its experts are packed by outputs and unpacked by inputs."""
    packed, unpacked = (read_checkpoint(folder) for folder in pair("gpt_oss", "openai"))
    name = "model.layers.1.mlp.experts.gate_up_proj"

    assert np.array_equal(packed.weights[name].read(ALL), unpacked.weights[name].read(ALL))
    assert packed.weights_digest() == unpacked.weights_digest()


def test_a_node_tells_to_what_it_rounds_weights(tmp_path: Path) -> None:
    """What a dtype holds is not rounded; the digest stays what it is."""
    packed, unpacked = (read_checkpoint(folder) for folder in affine_pair("llama", Affine(4)))
    halved = read_checkpoint(unpacked_affine(packed.directory, tmp_path / "half", dtype=torch.bfloat16))

    assert packed.weight_rounding(KvDtype.BFLOAT16) == "none"
    assert packed.unpacked().weight_rounding(KvDtype.BFLOAT16) == "bfloat16"
    assert packed.unpacked().weight_rounding(KvDtype.FLOAT32) == "none"
    assert unpacked.weight_rounding(KvDtype.FLOAT16) == "float16"
    assert halved.weight_rounding(KvDtype.BFLOAT16) == "none"
    assert packed.weights_digest() == unpacked.weights_digest() != halved.weights_digest()


def test_unpacked_folders_are_read_row_by_row() -> None:
    """Rows that are chosen are those of the whole."""
    packed, unpacked = affine_pair("wide_llama", Affine(4, is_mixed=True))
    chosen = np.array([3, 0, 7])
    for name, weight in read_checkpoint(packed).weights.items():
        whole = weight.read(ALL)
        rows = chosen if weight.num_rows > 7 else np.array([0])

        assert np.array_equal(weight.read(rows), whole[rows]), name
        assert np.array_equal(whole, read_checkpoint(unpacked).weights[name].read(ALL)), name
