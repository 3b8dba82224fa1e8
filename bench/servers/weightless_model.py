"""A model folder for measurements of what surrounds the model: a real tokenizer, a tiny shape, weights of 0."""

from __future__ import annotations

import json
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_VOCABULARY_SIZE = 8000
_END = "<|end|>"
_HIDDEN, _LAYERS, _KV = 64, 2, 32
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_model(directory: Path) -> int:
    """Write the folder: a byte-level BPE tokenizer trained on this checkout's text; return its vocabulary's size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    patterns = ("*.md", "services/**/*.py", "bench/**/*.py")
    texts = [str(path) for pattern in patterns for path in sorted(_ROOT.glob(pattern))]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[_END],
        show_progress=False,
    )
    tokenizer.train(texts, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    size, end = tokenizer.get_vocab_size(), int(tokenizer.token_to_id(_END) or 0)
    _write(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END, "chat_template": _TEMPLATE},
    )
    _write(directory / "generation_config.json", {"eos_token_id": end})
    _write(directory / "config.json", _config(size, end))
    _write_weights(directory / "model.safetensors", size)
    return size


def _config(vocabulary_size: int, end_token_id: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary_size,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": end_token_id,
        "eos_token_id": end_token_id,
    }


def _write(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def _write_weights(path: Path, vocabulary_size: int) -> None:
    """Write zeros in the shapes of the configuration."""
    import numpy as np
    from safetensors.numpy import save_file

    shapes = {"model.embed_tokens.weight": (vocabulary_size, _HIDDEN), "model.norm.weight": (_HIDDEN,)}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (_KV, _HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (_KV, _HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            f"{prefix}.mlp.gate_proj.weight": (2 * _HIDDEN, _HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (2 * _HIDDEN, _HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (_HIDDEN, 2 * _HIDDEN),
            f"{prefix}.input_layernorm.weight": (_HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (_HIDDEN,),
        }
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, path)
