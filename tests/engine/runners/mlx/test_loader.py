"""Loading folders into the mlx runner, and refusing those that mlx-lm would compute differently."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import pytest

from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.engine.runners.base import Span
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype
from checkpoints import CHECKPOINT_NAMES, CheckpointName, checkpoint, reference_generate

pytest.importorskip("mlx.core")

import mlx.core as mx

from baton.engine.runners.mlx import load_mlx_runner


@pytest.mark.parametrize("name", CHECKPOINT_NAMES)
def test_layout_is_the_checkpoints_own(name: CheckpointName) -> None:
    """The layout equals what the folder says, so that the other engine has the same."""
    runner = load_mlx_runner(checkpoint(name), model_id="tiny", num_blocks=1)

    assert (
        runner.info.layout
        == read_checkpoint(checkpoint(name)).model_info("tiny", KvDtype.FLOAT32, engine="torch", device="cpu").layout
    )
    assert runner.info.engine == "mlx"


@pytest.mark.parametrize("name", ["llama3", "qwen2", "mistral", "yarn_llama", "yarn_qwen2"])
def test_configuration_with_rope_parameters_alone_is_enough(name: CheckpointName, tmp_path: Path) -> None:
    """A folder as transformers 5 writes it, without the flat keys that mlx-lm reads, gives the reference's tokens."""
    folder = copytree(checkpoint(name), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    for key in ("rope_theta", "rope_scaling"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps(config))
    runner = load_mlx_runner(folder, model_id="tiny", num_blocks=12)
    token_ids = list(range(110, 210))

    token_ids += runner.forward([Span(token_ids, 0, range(12), needs_logits=True)]).argmax()
    for start in range(100, 163):
        token_ids += runner.forward([Span(token_ids[-1:], start, range(12), needs_logits=True)]).argmax()

    assert token_ids[100:] == reference_generate(checkpoint(name), token_ids[:100], 64, guess=token_ids[100:])


@pytest.mark.parametrize(
    ("change", "problem"), [({"hidden_act": "relu"}, "relu"), ({"num_hidden_layers": 5}, "mlx-lm cannot load it")]
)
def test_model_that_mlx_cannot_compute_is_refused(change: dict[str, object], problem: str, tmp_path: Path) -> None:
    """A configuration that mlx-lm would read differently, or not at all, is refused with the cause."""
    folder = copytree(checkpoint("llama"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))

    with pytest.raises(ConfigurationError, match=problem):
        load_mlx_runner(folder, model_id="tiny", num_blocks=1)


SCALED = {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "rope", "message"),
    [
        ("mixtral", SCALED, r"rope_parameters\.rope_type: the mlx engine expected default, got 'linear'"),
        ("gemma2", SCALED, r"rope_parameters\.rope_type: the mlx engine expected default, got 'linear'"),
        ("qwen3_moe", YARN, r"rope_parameters\.rope_type: the mlx engine expected default, got 'yarn'"),
        ("qwen2_moe", YARN, r"rope_parameters\.rope_type: the mlx engine expected default, got 'yarn'"),
        (
            "gemma3",
            {"full_attention": SCALED, "sliding_attention": SCALED},
            r"rope_parameters\.sliding_attention\.rope_type: the mlx engine expected default, got 'linear'",
        ),
    ],
)
def test_rotations_that_mlx_would_not_scale_are_refused(
    name: CheckpointName, rope: dict[str, object], message: str, tmp_path: Path
) -> None:
    """mlx-lm ignores the scale in some families; their tokens would be others than transformers'."""
    folder = copytree(checkpoint(name), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))

    with pytest.raises(ConfigurationError, match=message):
        load_mlx_runner(folder, model_id="tiny", num_blocks=1)


@pytest.mark.parametrize(("num_blocks", "expected_bytes"), [(1, 128 << 20), (12_288, 192 << 20)])
def test_freed_memory_kept_is_in_proportion_to_the_blocks(num_blocks: int, expected_bytes: int) -> None:
    """A small node stays small: MLX keeps as much for reuse as the blocks take, within bounds."""
    load_mlx_runner(checkpoint("llama"), model_id="tiny", num_blocks=num_blocks)

    assert mx.set_cache_limit(0) == expected_bytes


def test_unknown_dtype_is_refused_by_name(tmp_path: Path) -> None:
    """A dtype that cannot hold a cache is refused before anything is read."""
    with pytest.raises(ConfigurationError, match="int8"):
        load_mlx_runner(tmp_path, model_id="tiny", dtype="int8", num_blocks=1)
