"""Writes the folder that engines load, in the layout of Qwen3.5's on the hub.

`PYTHONPATH=tests python -m demo.export WEIGHTS FOLDER_OF_THE_FIRST_DEMO OUT`
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

from demo.model import CONFIG, LAYERS, is_linear
from demo.vocabulary import END_ID, PAD_ID

_OF_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def export(weights: Path, tokenizer: Path, folder: Path) -> None:
    """Write weights, configuration, tokenizer and chat template; there is no tower for images."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name.replace("model.", "model.language_model.", 1): each for name, each in load_file(weights).items()}
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", metadata={"format": "pt"})
    kinds = ["linear_attention" if is_linear(layer) else "full_attention" for layer in range(LAYERS)]
    text = {"model_type": "qwen3_5_text", **CONFIG, "hidden_act": "silu", "dtype": "bfloat16", "layer_types": kinds}
    text |= {"attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "dtype": "bfloat16",
        "eos_token_id": END_ID,
        "model_type": "qwen3_5",
        "pad_token_id": PAD_ID,
        "text_config": dict(sorted(text.items())),
        "tie_word_embeddings": True,
        "transformers_version": "5.23.0",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in _OF_TOKENIZER:
        shutil.copyfile(tokenizer / name, folder / name)


if __name__ == "__main__":
    export(*map(Path, sys.argv[1:]))
