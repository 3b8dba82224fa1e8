"""Small random LoRA adapters, made and saved by PEFT, and what transformers generates with them."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from checkpoints import CheckpointName, checkpoint, reference_device

SEPARATE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def targets_of(family: CheckpointName) -> tuple[str, ...]:
    """Return every projection of a family that an adapter may change: of experts, none."""
    if family == "phi3":
        return FUSED
    return SEPARATE[:4] if family in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss") else SEPARATE


@cache
def adapter_folder(family: CheckpointName, seed: int) -> Path:
    """Return the folder of an adapter that changes all that one can, made on first use."""
    return make_adapter(family, seed, targets_of(family))


def make_adapter(family: CheckpointName, seed: int, targets: Sequence[str], **options: Any) -> Path:
    """Make an adapter of a tiny checkpoint; it is removed with the checkpoint.

    Args:
        family: Whose.
        seed: Of its weights.
        targets: Projections that it changes.
        options: Further fields of `LoraConfig`.

    Returns:
        The folder.
    """
    folder = checkpoint(family)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=list(targets), task_type="CAUSAL_LM", **options)
    with torch.random.fork_rng(devices=[]), _old_names():
        torch.manual_seed(seed)
        model = get_peft_model(_model(folder), config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.normal_(0.0, 0.5 * parameter.shape[-1] ** -0.5)
    target = folder.parent / f"{family}-{seed}-{'-'.join(targets)}-{'-'.join(sorted(options))}"
    model.save_pretrained(target)
    return target


def adapted_argmax(family: CheckpointName, adapter: Path | None, token_ids: Sequence[int]) -> list[int]:
    """Return the most probable token after every position, by transformers and PEFT in float32."""
    model = _reference(family).to(reference_device())
    tokens_fed = torch.tensor([token_ids], device=reference_device())
    with torch.inference_mode():
        if adapter is None:
            with model.disable_adapter():
                logits = model(tokens_fed).logits
        else:
            _use(model, adapter)
            logits = model(tokens_fed).logits
    tokens: list[int] = logits[0].argmax(-1).tolist()
    return tokens


def is_greedy(family: CheckpointName, adapter: Path | None, prompt: Sequence[int], output: Sequence[int]) -> bool:
    """Return whether PEFT would generate the very output, each token the most probable one after those before it."""
    return adapted_argmax(family, adapter, [*prompt, *output])[len(prompt) - 1 : -1] == list(output)


def random_prompt(num_tokens: int, seed: int = 0) -> tuple[int, ...]:
    """Return tokens of the tiny vocabulary that are no special ones."""
    draw = random.Random(seed * 10_007 + num_tokens)
    return tuple(draw.randrange(3, 512) for _ in range(num_tokens))


def differ(outputs: Sequence[Sequence[int]]) -> bool:
    """Return whether no two outputs are equal."""
    return len({tuple(output) for output in outputs}) == len(outputs)


@cache
def _reference(family: CheckpointName) -> Any:
    with _old_names():
        return get_peft_model(_model(checkpoint(family)), LoraConfig(target_modules=list(targets_of(family)))).eval()


def _use(model: Any, adapter: Path) -> None:
    name = adapter.name.replace(".", "-")
    with _old_names():
        if name not in model.peft_config:
            model.load_adapter(str(adapter), name)
        model.set_adapter(name)
    model.eval().to(reference_device())


def _model(folder: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    return model


@contextmanager
def _old_names() -> Iterator[None]:
    """Let PEFT ask a model for attributes that transformers has given other names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
