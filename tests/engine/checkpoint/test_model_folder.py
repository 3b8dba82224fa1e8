"""A model folder is described as transformers sees it, and what cannot be served is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from baton.engine.checkpoint.families import text_config, text_name
from baton.engine.checkpoint.model_folder import read_checkpoint
from baton.errors import ConfigurationError
from baton.kv.kv_format import KvDtype, LayerSpec
from checkpoints import CHECKPOINT_NAMES, SLIDING_WINDOW_TOKENS, CheckpointName, checkpoint

every_checkpoint = pytest.mark.parametrize("name", CHECKPOINT_NAMES)


def copy_with(tmp_path: Path, name: CheckpointName, **changes: Any) -> Path:
    """Copy a checkpoint and change keys of its config.json."""
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint(name), folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@every_checkpoint
def test_description_equals_the_loaded_model(name: CheckpointName) -> None:
    """Heads, sizes, parameters and bytes are those of transformers' model."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint(name), local_files_only=True)
    info = read_checkpoint(checkpoint(name)).model_info("m", KvDtype.BFLOAT16, engine="torch", device="cpu")

    attention = model.get_decoder().layers[0].self_attn
    linear = [part for part in model.get_decoder().layers.modules() if isinstance(part, torch.nn.Linear)]
    spec = info.layout.layers[0]
    assert info.head_dim == spec.key_head_dim == spec.value_head_dim == attention.head_dim
    assert attention.k_proj.out_features == spec.num_kv_heads * spec.key_head_dim
    assert info.num_attention_heads * info.head_dim == attention.q_proj.out_features
    assert info.num_linear_parameters == sum(part.weight.numel() for part in linear)
    assert info.num_head_parameters == model.lm_head.weight.numel()
    assert info.weight_bytes == 2 * (info.num_linear_parameters + info.num_head_parameters)
    assert info.vocabulary_size == model.lm_head.out_features
    assert info.layout.num_layers == len(model.get_decoder().layers)
    assert info.max_context_tokens == model.config.max_position_embeddings
    assert info.eos_token_ids == (2,)


@every_checkpoint
def test_only_mistral_has_a_window(name: CheckpointName) -> None:
    """The sliding window is in the layout of every layer that has one."""
    windows = {spec.sliding_window_tokens for spec in read_checkpoint(checkpoint(name)).layer_specs()}

    assert windows == {SLIDING_WINDOW_TOKENS if name == "mistral" else 0}


def test_qwen_window_applies_to_upper_layers_when_switched_on(tmp_path: Path) -> None:
    """Without `layer_types`, layers from `max_window_layers` on have Qwen's window, and only if it is used."""
    on = {"layer_types": None, "sliding_window": 32, "max_window_layers": 3, "use_sliding_window": True}
    folder = copy_with(tmp_path, "qwen2", **on)

    assert [spec.sliding_window_tokens for spec in read_checkpoint(folder).layer_specs()] == [0, 0, 0, 32]


def test_tied_embeddings_are_seen_in_the_files() -> None:
    """A folder without an output projection is tied."""
    assert read_checkpoint(checkpoint("llama3")).is_tied
    assert not read_checkpoint(checkpoint("llama")).is_tied


def test_revision_digest_changes_with_weights_and_configuration(tmp_path: Path) -> None:
    """Copies have one digest; other weights or another configuration have another."""
    original = read_checkpoint(checkpoint("llama")).weights_digest()
    folder = copy_with(tmp_path, "llama")
    copied = read_checkpoint(folder).weights_digest()
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    retrained = read_checkpoint(folder).weights_digest()

    assert copied == original
    assert retrained != original
    assert read_checkpoint(copy_with(tmp_path / "b", "llama", rms_norm_eps=1e-3)).weights_digest() != original


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0not json", b"\x02\0\0\0\0\0\0\0[]", b"version https"])
def test_a_broken_weights_file_is_named(tmp_path: Path, content: bytes) -> None:
    """Cut short by a download, or only the pointer to it."""
    folder = copy_with(tmp_path, "llama")
    (folder / "model.safetensors").write_bytes(content)

    with pytest.raises(ConfigurationError, match=r"model\.safetensors is not a safetensors file"):
        read_checkpoint(folder)


def test_nodes_with_other_end_tokens_serve_another_revision(tmp_path: Path) -> None:
    """generation_config.json is edited more often than weights; a request must not move between the two."""
    folder = copy_with(tmp_path, "llama")
    original = read_checkpoint(folder).weights_digest()

    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')

    assert read_checkpoint(folder).weights_digest() != original


ROPE_TYPES = r"rope_scaling\.type: expected default, linear, llama3, yarn, got "


@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rotations_by_the_position_alone_are_read(tmp_path: Path, kind: str, key: str) -> None:
    """For all layers, and for those of one kind."""
    flat: dict[str, Any] = {"rope_parameters": None, "rope_scaling": {key: kind, "factor": 8.0}}
    nested = {"full_attention": {key: kind, "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {key: "default"}}

    read_checkpoint(copy_with(tmp_path / "flat", "llama", **flat))
    read_checkpoint(copy_with(tmp_path / "nested", "gemma3", rope_parameters=nested))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bloom"}, "'bloom' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, r"rope_parameters\.rope_type: .*'dynamic'"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}}, ROPE_TYPES + "'su'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, ROPE_TYPES + "'longrope'"),
        ({"rope_scaling": {"type": "one of next year"}}, ROPE_TYPES + "'one of next year'"),
        (
            {"rope_parameters": {"full_attention": {"type": "dynamic"}, "sliding_attention": {"rope_type": "default"}}},
            r"rope_parameters\.full_attention\.type: .*'dynamic'",
        ),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, r"layer_types\[1\].*'linear_attention'"),
        ({"layer_types": ["chunked_attention"] * 4}, r"layer_types\[0\].*'chunked_attention'"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers: 2 layers share the KV of others"),
    ],
)
def test_models_that_cannot_be_served_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """The message names the key's value."""
    with pytest.raises(ConfigurationError, match=message):
        read_checkpoint(copy_with(tmp_path, "llama", **changes))


def test_folders_that_are_no_models_are_refused(tmp_path: Path) -> None:
    """A missing or broken config.json and a folder without safetensors each get their message."""
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not JSON"):
        read_checkpoint(tmp_path)
    shutil.copy(checkpoint("llama") / "config.json", tmp_path)
    with pytest.raises(ConfigurationError, match=r"no \*\.safetensors file: was it fetched whole"):
        read_checkpoint(tmp_path)
    (tmp_path / "model.Q4_K_M.gguf").touch()
    with pytest.raises(ConfigurationError, match=r"only model\.Q4_K_M\.gguf: export the model to safetensors"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("num_missing", [1, 100_000])
def test_weights_that_are_cut_short_are_refused_with_both_sizes(tmp_path: Path, num_missing: int) -> None:
    """Before anything of them is loaded: within the tensors as well as by one byte."""
    folder = copy_with(tmp_path, "llama")
    file = folder / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - num_missing)

    cut = rf"model\.safetensors is cut short: {size - num_missing} of {size} bytes are there; fetch it again"
    with pytest.raises(ConfigurationError, match=cut):
        read_checkpoint(folder)


def test_a_pointer_of_git_lfs_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    """What `git clone` leaves where LFS is not installed."""
    folder = copy_with(tmp_path, "llama")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)

    with pytest.raises(ConfigurationError, match="pointer of Git LFS; run `git lfs pull`"):
        read_checkpoint(folder)


def test_a_file_that_the_index_names_and_is_not_there_is_named(tmp_path: Path) -> None:
    """Of a fetch that broke off between two files."""
    folder = copy_with(tmp_path, "llama")
    weight_map = {"a": "model.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    with pytest.raises(ConfigurationError, match=r"1 of 2 weight files are missing, among them model-2\.safetensors"):
        read_checkpoint(folder)


@pytest.mark.parametrize("value", [None, "many", 0])
def test_a_configuration_without_a_size_is_refused_by_the_field(tmp_path: Path, value: object) -> None:
    """It would fail somewhere in a framework."""
    folder = copy_with(tmp_path, "llama", num_hidden_layers=value)

    with pytest.raises(ConfigurationError, match=r"config\.json: num_hidden_layers: expected a whole number above 0"):
        read_checkpoint(folder)


def test_the_text_of_a_folder_with_a_tower_is_read_as_one_of_its_own(tmp_path: Path) -> None:
    """Configuration, names and digest are those of the language model; the tower is nobody's."""
    within = read_checkpoint(checkpoint("qwen3_vl"))
    folder = copy_with(tmp_path, "qwen3_vl")
    tensors = load_file(folder / "model.safetensors")
    text = {text_name(name): tensor for name, tensor in tensors.items() if text_name(name)}
    save_file(text, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(within.config)))

    own = read_checkpoint(folder)

    assert (own.family, own.is_wrapped, within.is_wrapped) == ("qwen3", False, True)
    assert own.weights_digest() == within.weights_digest()
    assert 0 < len(within.weights) == len(text) < len(tensors)


def test_what_a_text_leaves_out_is_what_transformers_takes_for_it() -> None:
    """Folders of Gemma 3 name a few sizes of their text."""
    text = text_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}})
    theirs = Gemma3TextConfig()

    assert all(getattr(theirs, key) == value for key, value in text.items())


def test_a_text_of_an_unknown_family_is_refused_by_it(tmp_path: Path) -> None:
    """The message has the text's own model_type, not the folder's."""
    with pytest.raises(ConfigurationError, match=r"model_type 'mamba9' is not supported; supported are .*qwen3_vl"):
        read_checkpoint(copy_with(tmp_path, "qwen3_vl", text_config={"model_type": "mamba9"}))


def test_layers_of_gemma_4_have_sizes_of_their_own_and_the_last_read_others(tmp_path: Path) -> None:
    """Projections that a folder has for those are no part of the model."""
    small, large = read_checkpoint(checkpoint("gemma4_e2b")), read_checkpoint(checkpoint("gemma4_31b"))
    folder = copy_with(tmp_path, "gemma4_e2b")
    tensors = load_file(folder / "model.safetensors")
    own = "model.language_model.layers.{}.self_attn.k_proj.weight"
    save_file(tensors | {own.format(5): tensors[own.format(1)].clone()}, folder / "model.safetensors")

    local, everything = LayerSpec(2, 32, 32, SLIDING_WINDOW_TOKENS), LayerSpec(2, 64, 64)
    assert small.layer_specs() == (local, everything, local)
    assert large.layer_specs() == (local, LayerSpec(1, 64, 64)) * 2
    assert read_checkpoint(folder).weights_digest() == small.weights_digest()


def test_end_tokens_beside_a_text_are_the_texts(tmp_path: Path) -> None:
    """Folders name them for all parts; the file of generation comes first, as ever."""
    folder = copy_with(tmp_path, "gemma4_e2b", eos_token_id=[5, 106])
    (folder / "generation_config.json").unlink()

    beside = read_checkpoint(folder).eos_token_ids
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 106, 50]}')

    assert (beside, read_checkpoint(folder).eos_token_ids) == ((5, 106), (5, 106, 50))
