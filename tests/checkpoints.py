"""Tiny random checkpoints in the Hugging Face format, and what transformers generates from them.

The weights are sharpened: logits of a freshly initialised model are near-ties, for which equality of greedy outputs
would prove nothing.
"""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DeepseekV3Config,
    DeepseekV32Config,
    FalconH1Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4VisionConfig,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MiniMaxM2Config,
    Ministral3Config,
    Mistral3Config,
    MistralConfig,
    MixtralConfig,
    NemotronHConfig,
    Phi3Config,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3_5Config,
    Qwen3_5MoeConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5MoeVisionConfig,
    Qwen3_5TextConfig,
    Qwen3_5VisionConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    Qwen3VLConfig,
    Qwen3VLTextConfig,
    Qwen3VLVisionConfig,
    SiglipVisionConfig,
    SmolLM3Config,
)

BaseCheckpointName = Literal["llama", "llama3", "qwen2", "qwen3", "mistral"]
FamilyCheckpointName = Literal[
    "mixtral", "qwen2_moe", "qwen3_moe", "phi3", "smollm3", "gemma2", "gemma3", "glm4_moe", "gpt_oss"
]
LatentCheckpointName = Literal["deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"]
HubCheckpointName = Literal[
    "minimax_m2",
    "gemma3_vl",
    "mistral3",
    "ministral3",
    "qwen3_vl",
    "qwen3_next",
    "deepseek_v3",
    "glm4_moe_lite",
    "gemma4_e2b",
    "gemma4_31b",
    "gemma4_26b",
    "qwen3_5",
    "qwen3_5_moe",
    "lfm2",
    "nemotron_h",
    "falcon_h1",
    "deepseek_v32",
    "glm_moe_dsa",
]
YarnCheckpointName = Literal[
    "yarn_llama",
    "yarn_mistral",
    "yarn_qwen2",
    "yarn_qwen2_moe",
    "yarn_qwen3",
    "yarn_qwen3_moe",
    "yarn_smollm3",
    "yarn_gpt_oss",
]
WideCheckpointName = Literal["wide_llama", "wide_qwen3"]
CheckpointName = BaseCheckpointName | FamilyCheckpointName | HubCheckpointName | YarnCheckpointName | WideCheckpointName
"""`llama` has grouped queries, `llama3` RoPE scaling and tied embeddings, `qwen2` biases, `qwen3` QK norms and a head
size of its own, `mistral` a sliding window."""

CHECKPOINT_NAMES: tuple[BaseCheckpointName, ...] = get_args(BaseCheckpointName)
"""Those whose every feature differs in the cache; all placements are tested with them."""

FAMILY_NAMES: tuple[FamilyCheckpointName, ...] = get_args(FamilyCheckpointName)
"""Those of the other families."""

HUB_NAMES: tuple[HubCheckpointName, ...] = get_args(HubCheckpointName)
"""Those of families whose folders are laid out otherwise than transformers' classes: `families/test_matrix.py` tries
them; all but MiniMax and Qwen3-Next have a tower for images."""
HYBRID_NAMES: tuple[HubCheckpointName, ...] = (
    *("qwen3_next", "qwen3_5", "qwen3_5_moe", "lfm2"),
    *("nemotron_h", "falcon_h1"),
)
"""Those of them with layers that keep a state of the sequence instead of K and V."""
LATENT_NAMES: tuple[LatentCheckpointName, ...] = get_args(LatentCheckpointName)
"""Those of families that cache latents; `deepseek_v3` has groups of experts and YaRN."""

YARN_NAMES: tuple[YarnCheckpointName, ...] = get_args(YarnCheckpointName)
"""Those of some families whose rotary embedding YaRN stretches, each written as folders of its family write it."""

VOCABULARY_SIZE = 512
MAX_CONTEXT_TOKENS = 2048
SLIDING_WINDOW_TOKENS = 64

_QUERY_KEY_GAIN = 3.0
_OFFSET_NORMS = ("Gemma2", "Gemma3", "Qwen3Next", "Qwen3_5")
_SEEDS: dict[CheckpointName, int] = {
    "llama": 17,
    "llama3": 7,
    "qwen2": 24,
    "qwen3": 29,
    "mistral": 12,
    "mixtral": 6,
    "qwen2_moe": 2,
    "qwen3_moe": 1,
    "phi3": 1,
    "smollm3": 1,
    "gemma2": 24,
    "gemma3": 9,
    "glm4_moe": 2,
    "gpt_oss": 2,
    "minimax_m2": 2,
    "gemma3_vl": 9,
    "mistral3": 12,
    "ministral3": 12,
    "qwen3_vl": 29,
    "deepseek_v3": 1,
    "glm4_moe_lite": 1,
    "deepseek_v32": 1,
    "glm_moe_dsa": 1,
    "qwen3_next": 2,
    "gemma4_e2b": 3,
    "gemma4_31b": 3,
    "gemma4_26b": 3,
    "qwen3_5": 3,
    "qwen3_5_moe": 3,
    "lfm2": 3,
    "nemotron_h": 3,
    "falcon_h1": 3,
    "yarn_llama": 17,
    "yarn_mistral": 12,
    "yarn_qwen2": 24,
    "yarn_qwen2_moe": 2,
    "yarn_qwen3": 29,
    "yarn_qwen3_moe": 1,
    "yarn_smollm3": 1,
    "yarn_gpt_oss": 2,
    "wide_llama": 3,
    "wide_qwen3": 4,
}
"""Seeds whose greedy outputs keep varying, and whose best token leads by 0.0003 or more (logits vary by 1)."""

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TOKENIZER_CORPUS = [
    "Prefill is compute-bound and belongs on the machine with the most FLOP/s; decode is bound by memory bandwidth.",
    "A prefill runner hands the KV cache to a decode runner like a baton, layer by layer, while it is still running.",
    "What is the capital of France? The capital of France is Paris. How many legs does a spider have? Eight.",
    "user assistant system tool hello world the and of to in is that it for was on are with as at be this have from",
]
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_CONTEXT_TOKENS,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}

_GATED_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
}
"""Sizes of layers that keep a state, no two dimensions of which are equal."""

_NEMOTRON: dict[str, Any] = {
    "hybrid_override_pattern": "ME*-ME",
    "num_hidden_layers": 6,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 24,
    "n_groups": 2,
    "chunk_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 96,
    "routed_scaling_factor": 2.5,
}
"""Kinds of layers as in Nemotron 3 Nano, and a dense one as in Nemotron Nano 2; groups as in both."""
_FALCON: dict[str, Any] = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 96,
    "mamba_norm_before_gate": False,
    "embedding_multiplier": 4.0,
    "lm_head_multiplier": 0.75,
    "key_multiplier": 0.5,
    "attention_out_multiplier": 0.9375,
    "mlp_multipliers": [0.875, 0.6],
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.9, 0.8, 0.7, 1.3, 1.1],
    "ssm_out_multiplier": 0.6,
}
"""Every multiplier but one of attention's inputs, which mlx-lm folds into some of the weights alone."""

_WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8}
"""Sizes that groups of 128 elements divide."""

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
"""Sizes of what no test looks through."""

_YARN_OPTIONS: dict[str, dict[str, Any]] = {
    "llama": {"attention_factor": 1.2, "beta_fast": 2.0, "beta_slow": 0.5},
    "mistral": {"mscale": 1.0, "mscale_all_dim": 0.5},
    "qwen3": {"mscale": 0.5},
    "gpt_oss": {"rope_theta": 150_000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "smollm3": {"beta_fast": 2.0, "truncate": False},
}
"""What makes frequencies and scale differ from those of the factor alone."""


def checkpoint(name: CheckpointName) -> Path:
    """Return the folder of a checkpoint, made on first use and removed when the process ends."""
    return _make_checkpoint(name)


def reference_generate(folder: Path, prompt_ids: list[int], num_tokens: int, *, guess: Sequence[int] = ()) -> list[int]:
    """Return the greedy continuation by transformers in float32, without ending at EOS.

    Where an index chooses the keys that a query sees, it computes in float64.

    Args:
        folder: The checkpoint.
        prompt_ids: The prompt.
        num_tokens: Length of the continuation.
        guess: What it may be, as a rule the output under test. It saves time and changes nothing: one pass over it says
            up to where it is what transformers chooses, and only tokens from there on take a pass each.
    """
    known = _known_continuation(folder, tuple(prompt_ids))
    if len(known) < num_tokens and guess:
        _take_agreed(folder, prompt_ids, known, guess[:num_tokens])
    if len(known) < num_tokens:
        known += _generate(folder, [*prompt_ids, *known], num_tokens - len(known))
    return known[:num_tokens]


def reference_logits(folder: Path, token_ids: list[int], *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the logits at every position by transformers: [num_tokens, vocabulary_size], float32."""
    with torch.inference_mode():
        prompt = torch.tensor([token_ids], device=_reference_device)
        logits: torch.Tensor = _reference_model(folder, dtype)(prompt).logits[0].float()
    return logits.cpu()


_reference_device = torch.device("cpu")


def reference_device() -> torch.device:
    """Return where transformers computes."""
    return _reference_device


def compute_references_on(device: torch.device) -> None:
    """Have transformers compute on a device from now on."""
    global _reference_device
    _reference_device = device
    _reference_model.cache_clear()


def _config_of(name: CheckpointName) -> Any:
    if name.startswith("yarn_"):
        family = name.removeprefix("yarn_")
        yarn = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 32.0, "original_max_position_embeddings": 64}
        return _plain_config_of(family, yarn | _YARN_OPTIONS.get(family, {}))
    return _plain_config_of(name, {"rope_type": "default", "rope_theta": 10_000.0})


def _plain_config_of(name: str, rope: dict[str, Any]) -> Any:
    if name == "llama":
        return LlamaConfig(**_BASE, rope_parameters=rope)
    if name == "wide_llama":
        return LlamaConfig(**_BASE | _WIDE, rope_parameters=rope)
    if name == "wide_qwen3":
        return Qwen3Config(**_BASE | _WIDE, head_dim=32, rope_parameters=rope)
    if name == "llama3":
        scaling = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}
        frequencies = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        return LlamaConfig(**{**_BASE, "tie_word_embeddings": True}, rope_parameters=scaling | frequencies)
    if name == "qwen2":
        return Qwen2Config(**_BASE, rope_parameters=rope)
    if name == "qwen3":
        return Qwen3Config(**_BASE, head_dim=32, rope_parameters=rope)
    if name == "mistral":
        return MistralConfig(**_BASE, head_dim=16, sliding_window=SLIDING_WINDOW_TOKENS, rope_parameters=rope)
    if name in HYBRID_NAMES:
        return _hybrid_config_of(name, rope)
    if name in LATENT_NAMES:
        return _latent_config_of(name, rope)
    if name in HUB_NAMES:
        return _hub_config_of(name, rope)
    return _family_config_of(name, rope)


def _hub_config_of(name: str, rope: dict[str, Any]) -> Any:
    if name == "minimax_m2":
        partial = rope | {"partial_rotary_factor": 0.5}
        return MiniMaxM2Config(
            **_BASE, num_experts_per_tok=2, head_dim=32, num_local_experts=8, rope_parameters=partial
        )
    if name == "gemma3_vl":
        siglip = SiglipVisionConfig(**_TOWER, image_size=28, patch_size=14)
        text = _family_config_of("gemma3", rope)
        return Gemma3Config(text_config=text, vision_config=siglip, mm_tokens_per_image=4, image_token_index=600)
    if name.startswith("gemma4"):
        return _gemma4_config_of(name, rope)
    if name == "qwen3_vl":
        tower = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 96}
        vision = Qwen3VLVisionConfig(**tower, num_position_embeddings=16, deepstack_visual_indexes=[0])
        of_images = {"mrope_section": [6, 5, 5], "mrope_interleaved": True}
        text = Qwen3VLTextConfig(**_BASE, head_dim=32, rope_parameters=rope | of_images)
        return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    pixtral = PixtralVisionConfig(**_TOWER, image_size=28, patch_size=14)
    if name == "mistral3":
        text = MistralConfig(**_BASE, head_dim=16, sliding_window=None, rope_parameters=rope)
    else:
        yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "mscale": 1.0}
        scaling = {"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
        text = Ministral3Config(**_BASE, head_dim=16, rope_parameters=rope | yarn | scaling)
    return Mistral3Config(text_config=text, vision_config=pixtral, image_token_index=600, tie_word_embeddings=False)


def _gemma4_config_of(name: str, rope: dict[str, Any]) -> Any:
    """Return one as Gemma 4's: small ones share K and V and give each layer a token's input, large ones have V of K."""
    partial = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 100_000.0}
    kinds = ["sliding_attention", "full_attention"] * (3 if name == "gemma4_e2b" else 2)
    of_kind: dict[str, Any] = {
        "gemma4_e2b": {"num_kv_shared_layers": 3, "hidden_size_per_layer_input": 32, "use_double_wide_mlp": True},
        "gemma4_31b": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        "gemma4_26b": {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64},
    }
    if name == "gemma4_26b":
        of_kind[name] |= of_kind["gemma4_31b"]
    base = _BASE | {"tie_word_embeddings": True, "num_hidden_layers": len(kinds), "final_logit_softcapping": 30.0}
    text = Gemma4TextConfig(
        **base | of_kind[name],
        head_dim=32,
        global_head_dim=64,
        layer_types=kinds,
        sliding_window=SLIDING_WINDOW_TOKENS,
        vocab_size_per_layer_input=VOCABULARY_SIZE,
        rope_parameters={"sliding_attention": rope, "full_attention": partial},
    )
    vision = Gemma4VisionConfig(**_TOWER, num_key_value_heads=2, head_dim=16, global_head_dim=16)
    ids = dict.fromkeys(("image_token_id", "video_token_id", "audio_token_id"), 600)
    return Gemma4Config(text_config=text, vision_config=vision, audio_config=None, **ids)


def _latent_config_of(name: str, rope: dict[str, Any]) -> Any:
    heads = {"num_key_value_heads": 6, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_rope_head_dim": 16}
    experts = {"moe_intermediate_size": 64, "n_routed_experts": 8, "num_experts_per_tok": 2}
    sizes = _BASE | heads | experts | {"qk_nope_head_dim": 32}
    if name == "glm4_moe_lite":
        return Glm4MoeLiteConfig(**sizes, v_head_dim=64, rope_parameters=rope)
    index = {"index_head_dim": 32, "index_n_heads": 32, "index_topk": 24}
    if name == "glm_moe_dsa":
        return GlmMoeDsaConfig(**sizes, **index, v_head_dim=64, first_k_dense_replace=1, rope_parameters=rope)
    yarn = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 32.0}
    groups = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
    rope = rope | yarn | {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    if name == "deepseek_v32":
        return DeepseekV32Config(**sizes, **groups, **index, v_head_dim=32, rope_parameters=rope)
    return DeepseekV3Config(**sizes, **groups, v_head_dim=32, rope_parameters=rope)


def _hybrid_config_of(name: str, rope: dict[str, Any]) -> Any:
    """Return a configuration with layers that keep a state."""
    if name == "nemotron_h":
        return NemotronHConfig(**_BASE | _NEMOTRON, head_dim=16)
    if name == "falcon_h1":
        return FalconH1Config(**_BASE | _FALCON, head_dim=16, rope_parameters=rope)
    if name == "lfm2":
        layers = ["conv", "conv", "full_attention", "conv"]
        return Lfm2Config(**_BASE | {"tie_word_embeddings": True}, layer_types=layers, rope_parameters=rope)
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    experts |= {"shared_expert_intermediate_size": 96}
    partial = rope | {"partial_rotary_factor": 0.25}
    sizes = _BASE | _GATED_DELTA | {"head_dim": 32}
    if name == "qwen3_next":
        return Qwen3NextConfig(**sizes, **experts, rope_parameters=partial)
    partial |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    tower = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 96}
    tower |= {"num_position_embeddings": 16}
    if name == "qwen3_5":
        vision, text = Qwen3_5VisionConfig(**tower), Qwen3_5TextConfig(**sizes, rope_parameters=partial)
        return Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    moe = Qwen3_5MoeTextConfig(**sizes, **experts, rope_parameters=partial)
    return Qwen3_5MoeConfig(text_config=moe, vision_config=Qwen3_5MoeVisionConfig(**tower), tie_word_embeddings=False)


def _family_config_of(name: str, rope: dict[str, Any]) -> Any:
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
    if name == "mixtral":
        return MixtralConfig(**_BASE, num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope)
    if name == "qwen2_moe":
        return Qwen2MoeConfig(
            **_BASE, **experts, num_experts=4, shared_expert_intermediate_size=96, rope_parameters=rope
        )
    if name == "qwen3_moe":
        return Qwen3MoeConfig(**_BASE, **experts, num_experts=8, head_dim=32, norm_topk_prob=True, rope_parameters=rope)
    if name == "phi3":
        return Phi3Config(**_BASE, sliding_window=None, rope_parameters=rope)
    if name == "smollm3":
        return SmolLM3Config(**_BASE, no_rope_layers=[1, 1, 0, 1], rope_parameters=rope)
    if name == "glm4_moe":
        return Glm4MoeConfig(
            **_BASE | experts,
            head_dim=32,
            n_routed_experts=8,
            use_qk_norm=True,
            attention_bias=True,
            rope_parameters=rope | {"partial_rotary_factor": 0.5},
        )
    window = {"sliding_window": SLIDING_WINDOW_TOKENS}
    if name == "gemma2":
        return Gemma2Config(
            **_BASE | {"tie_word_embeddings": True},
            **window,
            head_dim=16,
            query_pre_attn_scalar=16,
            rope_parameters=rope,
        )
    if name == "gemma3":
        ropes = {"sliding_attention": rope, "full_attention": rope | {"rope_theta": 100_000.0}}
        layers = ["sliding_attention", "full_attention"] * 2
        base = _BASE | {"tie_word_embeddings": True}
        return Gemma3TextConfig(
            **base, **window, head_dim=32, query_pre_attn_scalar=32, layer_types=layers, rope_parameters=ropes
        )
    return GptOssConfig(
        **_BASE, **window, head_dim=16, num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope
    )


@cache
def _root() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="baton-checkpoints-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def variant(name: CheckpointName, folder: Path, **changes: Any) -> Path:
    """Write a checkpoint with other values in its configuration, and weights of its own."""
    config = _config_of(name)
    return _write_checkpoint(name, type(config).from_dict(config.to_dict() | changes), folder)


@cache
def _make_checkpoint(name: CheckpointName) -> Path:
    return _write_checkpoint(name, _config_of(name), _root() / name)


def _write_checkpoint(name: CheckpointName, config: Any, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEEDS[name])
        model = _class_for(hasattr(config, "text_config")).from_config(config, dtype=torch.float32)
        _sharpen(model)
        for name_of_buffer, buffer in model.named_buffers():
            if name_of_buffer.endswith("layer_scalar"):
                buffer.fill_(0.75)
    model.save_pretrained(folder)
    _write_flat_rope(folder / "config.json")
    if name == "minimax_m2":
        _write_as_minimax(folder / "config.json")
    if name in LATENT_NAMES:
        _write_as_deepseek(folder / "config.json")
    if name == "nemotron_h":
        _write_as_nemotron(folder / "config.json")
    if name == "qwen3_5_moe":
        _fuse_experts(folder / "model.safetensors")
    _tokenizer().save_pretrained(folder)
    return folder


def _fuse_experts(file: Path) -> None:
    """Stack the tensors of experts, as folders on the Hub have them; `save_pretrained` writes one for each expert."""
    tensors = load_file(file)
    for block in sorted({name.partition(".experts.")[0] for name in tensors if ".experts." in name}):
        count = len([name for name in tensors if name.startswith(f"{block}.experts.") and "down_proj" in name])
        gates, others, down = (
            torch.stack([tensors.pop(f"{block}.experts.{index}.{part}_proj.weight") for index in range(count)])
            for part in ("gate", "up", "down")
        )
        tensors[f"{block}.experts.gate_up_proj"] = torch.cat([gates, others], dim=1)
        tensors[f"{block}.experts.down_proj"] = down
    save_file(tensors, file, metadata={"format": "pt"})


def _class_for(has_tower: bool) -> Any:
    return AutoModelForImageTextToText if has_tower else AutoModelForCausalLM


def _sharpen(model: torch.nn.Module) -> None:
    """Draw weights whose attention is peaked, so that greedy output does not settle on one token."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for parameter_name, parameter in parameters.items():
            is_tied = "lm_head.weight" not in parameters
            is_offset = type(model).__name__.startswith(_OFFSET_NORMS) and "linear_attn" not in parameter_name
            _draw(parameter_name, parameter, is_tied=is_tied, is_offset=is_offset)
            if type(model).__name__.startswith("Gemma4") and parameter_name.endswith(
                ("q_norm.weight", "k_norm.weight")
            ):
                # Its scores are not divided by the root of a head's size. Half as sharp as the others: with as sharp
                # ones, transformers' logits in float32 and in float64 differ by 1.2e-4 of the largest, not by 2e-5.
                parameter.mul_(parameter.shape[0] ** -0.25 * 0.5**0.5)
        if type(model).__name__.startswith(("DeepseekV3", "Glm4MoeLite", "GlmMoeDsa", "NemotronH")):
            for buffer_name, buffer in model.named_buffers():
                if buffer_name.endswith("e_score_correction_bias"):
                    buffer.normal_(-0.5, 0.2)


def _draw(name: str, parameter: torch.nn.Parameter, *, is_tied: bool, is_offset: bool) -> None:
    """Draw one; `is_offset`: the model's norms multiply by 1 + weight."""
    sharp = ("q_proj", "k_proj", "q_norm", "k_norm", "q_b_proj", "kv_a_proj", "wq_b")
    gain = _QUERY_KEY_GAIN if any(part in name for part in sharp) else 1.0
    if parameter.ndim >= 2:
        fan_in = 1 if "embed_tokens" in name and not is_tied else parameter.shape[-1]
        parameter.normal_(0.0, gain * fan_in**-0.5)
    elif name.endswith("A_log"):
        parameter.normal_(-3.0, 1.0)  # some heads forget within few tokens, some remember hundreds
    elif name.endswith("dt_bias") and "linear_attn" not in name:
        parameter.normal_(-4.0, 1.5)  # some steps are below the least one
    elif name.endswith(("bias", "sinks")):
        parameter.normal_(0.0, 0.2)
    elif name in ("model.norm.weight", "model.language_model.norm.weight", "model.embedding_norm.weight"):
        parameter.normal_(0.0, 1.0)  # with a norm near 1, tied embeddings would make every token predict itself
    elif is_offset:
        parameter.normal_(gain - 1.0, 0.1)
    else:
        parameter.normal_(gain, 0.1)


def _write_flat_rope(config_file: Path) -> None:
    """Add the flat RoPE keys: folders on the Hub carry them, and mlx-lm reads nothing else."""
    config = json.loads(config_file.read_text())
    text = config.get("text_config", config)
    rope = dict(text.get("rope_parameters", {}))
    if "rope_theta" not in rope:  # one for each kind of layer, or none
        return
    text["rope_theta"] = rope.pop("rope_theta")
    if rope["rope_type"] != "default":
        text["rope_scaling"] = rope
    config_file.write_text(json.dumps(config, indent=1))


def _write_as_minimax(config_file: Path) -> None:
    """Say as MiniMax's folders do which part of a head is rotated."""
    config = json.loads(config_file.read_text())
    rope = config.pop("rope_parameters")
    config |= {"rotary_dim": int(rope["partial_rotary_factor"] * config["head_dim"]), "use_mtp": True}
    config |= {"rope_theta": rope["rope_theta"], "shared_intermediate_size": 0, "scoring_func": "sigmoid"}
    config_file.write_text(json.dumps(config, indent=1))


def _write_as_deepseek(config_file: Path) -> None:
    """Say as the hub's folders do how experts are chosen and positions rotated."""
    config = json.loads(config_file.read_text())
    rope = config.pop("rope_parameters")
    for key in ("head_dim", "layer_types", "indexer_types"):
        config.pop(key, None)
    kind, _ = rope.pop("rope_type"), rope.pop("rope_theta")
    config["rope_scaling"] = {"type": kind, **rope} if kind != "default" else None
    if config["model_type"] == "glm_moe_dsa":
        config["rope_parameters"] = {"rope_type": kind, "rope_theta": config.pop("rope_theta")}
    config |= {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1, "partial_rotary_factor": 1.0}
    config_file.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}, indent=1))


def _write_as_nemotron(config_file: Path) -> None:
    """Say as NVIDIA's folders do of what kinds layers are, and to what their steps are limited."""
    config = json.loads(config_file.read_text())
    names = {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = "".join(names[kind] for kind in config.pop("layers_block_type"))
    config |= {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
    del config["mtp_layers_block_type"]
    config["time_step_limit"] = [0.0, float("inf")]
    config_file.write_text(json.dumps(config, indent=1))


@cache
def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=_SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TOKENIZER_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_TEMPLATE
    )


@cache
def _reference_model(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    config = json.loads((folder / "config.json").read_text())
    options: dict[str, Any] = {"dtype": dtype}
    if "index_topk" in config and dtype is torch.float32:
        # In float32 transformers' index takes another key by its rounding alone, and logits then differ by hundredths.
        options = {"dtype": torch.float64, "experts_implementation": "eager"}
    if "attn_logit_softcapping" in config:  # which the default of transformers before 5.21 leaves out
        options["attn_implementation"] = "eager"
    model = _class_for("text_config" in config).from_pretrained(folder, local_files_only=True, **options).eval()
    model.generation_config.eos_token_id = None
    return model.to(_reference_device)


@cache
def _known_continuation(folder: Path, prompt_ids: tuple[int, ...]) -> list[int]:
    """Return the list that holds what transformers is known to continue a prompt with; it grows as more is asked."""
    return []


def _take_agreed(folder: Path, prompt_ids: list[int], known: list[int], guess: Sequence[int]) -> None:
    """Extend a known continuation by what transformers chooses while a guess is right, and by its choice after that."""
    chosen = reference_logits(folder, [*prompt_ids, *guess])[len(prompt_ids) - 1 : -1].argmax(dim=-1).tolist()
    wrong = next(
        (index for index, pair in enumerate(zip(chosen, guess, strict=True)) if pair[0] != pair[1]), len(guess)
    )
    known += chosen[len(known) : wrong + 1]


def _generate(folder: Path, prompt_ids: list[int], num_tokens: int) -> list[int]:
    prompt = torch.tensor([prompt_ids], device=_reference_device)
    with torch.inference_mode():
        model = _reference_model(folder)
        # Of Nemotron-H, transformers limits steps where it computes several positions at once, and else does not.
        has_cache = model.config.model_type != "nemotron_h"
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=num_tokens,
            do_sample=False,
            use_cache=has_cache,
        )
    tokens: list[int] = output[0, len(prompt_ids) :].tolist()
    return tokens
