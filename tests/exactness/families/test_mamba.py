"""Variants of families with Mamba 2, in whatever form a folder has them; `test_matrix.py` has tokens of usual ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.runners.base import Span, StateSpan
from baton.errors import ConfigurationError
from checkpoints import VOCABULARY_SIZE, HubCheckpointName, checkpoint, reference_logits, variant
from exactness.loading import Framework, load_runner
from order import RUNS_ALL
from packed_checkpoints import Affine, pair

KINDS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
VARIANTS: dict[str, tuple[HubCheckpointName, dict[str, Any]]] = {
    "ends with Mamba": ("nemotron_h", {"layers_block_type": [KINDS[kind] for kind in "-E*M"]}),
    "ends with attention": ("nemotron_h", {"layers_block_type": [KINDS[kind] for kind in "M-*"]}),
    "experts of latents, in groups": (
        "nemotron_h",
        {"moe_latent_size": 32, "n_group": 4, "topk_group": 2, "layers_block_type": [KINDS[kind] for kind in "M*E"]},
    ),
    "biases": ("nemotron_h", {"use_bias": True, "mlp_bias": True}),
    "norm before the gate": ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": True}),
    "norm behind the gate": ("falcon_h1", {"mamba_rms_norm": True, "tie_word_embeddings": True}),
    "inputs of attention": (
        "falcon_h1",
        {"attention_in_multiplier": 0.7, "attention_bias": True, "mlp_bias": True, "projectors_bias": True},
    ),
}


def _prompt(length: int) -> list[int]:
    return random.Random(length).choices(range(3, VOCABULARY_SIZE), k=length)


def _copy(name: HubCheckpointName, folder: Path, **changes: Any) -> Path:
    copytree(checkpoint(name), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the checkpoint of a variant."""
    name, changes = VARIANTS[request.param]
    return variant(name, tmp_path_factory.mktemp("variant") / name, **changes)


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_logits_are_those_of_transformers(folder: Path, framework: Framework) -> None:
    """To 1e-4 of the largest: several positions at once, those after them one by one, the last of a prompt alone."""
    prompt = _prompt(40)
    expected = reference_logits(folder, prompt).numpy()
    runner, blocks = load_runner(framework, folder, num_blocks=8), range(3)

    first = runner.forward([Span(prompt[:34], 0, blocks, True, logits_from=0, state=StateSpan(None, 0))]).rows()
    steps = [
        np.array(runner.forward([Span(prompt[at : at + 1], at, blocks, True, state=StateSpan(0, 0))]).rows())
        for at in range(34, 40)
    ]
    last = runner.forward([Span(prompt, 0, range(3, 6), True, state=StateSpan(None, 1))]).rows()

    bound = 1e-4 * abs(expected).max()
    assert abs(np.concatenate([first, *steps]) - expected).max() <= bound
    assert abs(last - expected[-1:]).max() <= bound


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("kind", [Affine(5), Affine(6), "mxfp4", "nvfp4"] if RUNS_ALL else ["nvfp4"], ids=str)
def test_nemotron_is_read_in_the_formats_of_its_folders(kind: Affine | str, framework: Framework) -> None:
    """Those of exo's cards that `test_matrix.py` has not."""
    packed, unpacked = pair("nemotron_h", kind)
    expected = reference_logits(unpacked, _prompt(40)).numpy()

    rows = load_runner(framework, packed, num_blocks=4).forward([Span(_prompt(40), 0, range(3), True, logits_from=0)])

    assert abs(rows.rows() - expected).max() <= 1e-4 * abs(expected).max()


@pytest.mark.parametrize("framework", ["torch", "mlx"])
def test_multipliers_are_not_rounded_into_weights_of_16_bits(framework: Framework, tmp_path: Path) -> None:
    """mlx-lm would multiply weights in the folder's own format: logits would differ by 2e-3 of the largest."""
    copytree(checkpoint("falcon_h1"), tmp_path / "half")
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(half, tmp_path / "half" / "model.safetensors", {"format": "pt"})
    expected = reference_logits(tmp_path / "half", _prompt(40)).numpy()

    runner = load_runner(framework, tmp_path / "half", num_blocks=4)
    rows = runner.forward([Span(_prompt(40), 0, range(3), True, logits_from=0)]).rows()

    assert abs(rows - expected).max() <= 1e-4 * abs(expected).max()


def test_kinds_of_layers_have_three_forms(tmp_path: Path) -> None:
    """NVIDIA's string, transformers' list, and that of transformers before 5.13: they are one model."""
    given = read_checkpoint(checkpoint("nemotron_h"))
    kinds = given.config["layers_block_type"]
    old = {"linear_attention": "mamba", "full_attention": "attention"}
    told = [
        {"layers_block_type": kinds, "hybrid_override_pattern": None, "num_hidden_layers": None},
        {"layers_block_type": [old.get(kind, kind) for kind in kinds], "hybrid_override_pattern": None},
    ]

    others = [read_checkpoint(_copy("nemotron_h", tmp_path / str(index), **form)) for index, form in enumerate(told)]

    assert kinds == [KINDS[kind] for kind in "ME*-ME"]
    assert [bool(spec.state) for spec in given.layer_specs()] == [True, False, True]
    assert {each.weights_digest() for each in others} == {given.weights_digest()}


def test_layers_of_falcon_have_two_caches() -> None:
    """The state first, as it is computed."""
    specs = read_checkpoint(checkpoint("falcon_h1")).layer_specs()

    assert [bool(spec.state) for spec in specs] == [True, False] * 4
    assert {tensor.shape for tensor in specs[0].state} == {(3, 64 + 2 * 2 * 24), (4, 16, 24)}


def test_layers_that_predict_ahead_are_left_out(tmp_path: Path) -> None:
    """The hub's folders have them; folders of MLX's do not, and are the same model."""
    folder = _copy("nemotron_h", tmp_path / "mtp", num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E")
    tensors = load_file(folder / "model.safetensors")
    ahead = {"mtp.layers.0.norm.weight": torch.ones(96)}
    save_file(tensors | ahead, folder / "model.safetensors", {"format": "pt"})

    assert read_checkpoint(folder).weights_digest() == read_checkpoint(checkpoint("nemotron_h")).weights_digest()
    for framework in ("torch", "mlx"):
        runner = load_runner(framework, folder, num_blocks=4)
        assert np.isfinite(runner.forward([Span(_prompt(20), 0, range(2), True)]).rows()).all()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nemotron_h", {"hybrid_override_pattern": "ME*xME"}, r"layers_block_type\[3\]: .*, got 'x'"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: nemotron_h: expected relu2, got 'silu'"),
        ("nemotron_h", {"attention_bias": True}, "attention_bias: nemotron_h: expected False, got True"),
        ("falcon_h1", {"time_step_limit": [0.0, 0.1]}, r"time_step_limit: falcon_h1: .*, got \[0.0, 0.1\]"),
    ],
)
def test_variants_are_refused_by_the_name_of_the_field(
    name: HubCheckpointName, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """From the configuration, before any weight is read."""
    with pytest.raises(ConfigurationError, match=message):
        read_checkpoint(_copy(name, tmp_path / "copy", **changes))


def test_folders_of_mlx_that_are_multiplied_in_part_are_refused(tmp_path: Path) -> None:
    """mlx-lm multiplies queries and keys by what all inputs of attention are to be, and values not."""
    copytree(pair("falcon_h1", Affine(4, is_mixed=True))[0], tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text()) | {"attention_in_multiplier": 0.5}
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config))

    with pytest.raises(ConfigurationError, match=r"attention_in_multiplier: falcon_h1: expected 1\.0, got 0\.5"):
        read_checkpoint(tmp_path / "copy")
