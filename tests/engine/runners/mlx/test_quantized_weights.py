"""Folders as mlx-community publishes them: weights packed into few bits."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copy

import numpy as np
import pytest

from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from checkpoints import CheckpointName, checkpoint

mx = pytest.importorskip("mlx.core")

from mlx_lm.utils import load_model, quantize_model, save_config, save_model  # noqa: E402 (needs mlx)

from baton.engine.runners.mlx import load_mlx_runner  # noqa: E402

PROMPT = list(range(5, 69))


def quantized(name: CheckpointName, folder: Path, **overrides: object) -> Path:
    """Write a checkpoint's 4-bit form, as `mlx_lm.convert -q` does."""
    source = checkpoint(name)
    model, config = load_model(source)
    model, config = quantize_model(model, config, group_size=32, bits=4)
    save_model(folder, model)
    save_config(config | overrides, folder / "config.json")
    for file in (*source.glob("tokenizer*"), *source.glob("generation_config.json")):
        copy(file, folder)
    return folder


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_quantized_model_computes_what_mlx_lm_computes(name: CheckpointName, tmp_path: Path) -> None:
    """Fused or not, logits of the 4-bit model are mlx-lm's own."""
    folder = quantized(name, tmp_path / "model")
    parameters = json.loads((folder / "config.json").read_text())["rope_parameters"]
    model, _ = load_model(folder, model_config={"rope_theta": parameters["rope_theta"], "tie_word_embeddings": False})
    expected = np.array(model(mx.array([PROMPT]))[0])

    runner = load_mlx_runner(folder, model_id="tiny", num_blocks=8)
    rows = runner.forward([Span(PROMPT[:-1], 0, range(8), True, logits_from=0)]).rows()
    last = runner.forward([Span(PROMPT[-1:], len(PROMPT) - 1, range(8), True)]).rows()

    assert np.abs(np.concatenate([rows, last]) - expected).max() <= 1e-4 * np.abs(expected).max()


def test_sizes_are_those_of_the_weights_before_they_were_packed(tmp_path: Path) -> None:
    """Parameters count as ever; the bytes of a step are those of 4 bits, a scale and a bias per 32 elements."""
    plain = load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=1).info

    info = load_mlx_runner(quantized("llama", tmp_path / "model"), model_id="tiny", num_blocks=1).info

    assert info.num_linear_parameters == plain.num_linear_parameters
    assert info.weight_bytes == (info.num_linear_parameters + info.num_head_parameters) * (4 / 8 + 2 * 4 / 32)


def test_a_quantization_that_says_too_little_is_refused(tmp_path: Path) -> None:
    """config.json must say group size and bits."""
    folder = quantized("llama", tmp_path / "model", quantization={"bits": 4})

    with pytest.raises(ConfigurationError, match="quantization: expected mode affine"):
        read_checkpoint(folder)
