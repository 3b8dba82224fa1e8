"""A checkpoint that is made by hand: a Qwen3 transformer which recites answers to the ends of texts that it knows.

Real agents need a model that calls the right tool; none can be fetched, and random weights call nothing. This one looks
at the last WINDOW tokens and says the next one of its script; where it knows none, it ends its answer. All of it is
ordinary attention and an ordinary MLP, so that what it says is right only where tokens, positions and KV are:

- Every token has a random code. The head of offset `o` attends to the token `o` places back: its queries and keys are
  constant but for the rotation, which makes them agree at that distance alone. It adds the code, turned by a matrix of
  its own, to the context.
- Each hidden unit of the last MLP compares the context with one that it knows, and writes the code of what follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WINDOW = 32
"""Tokens that decide on the next one."""
MAX_CONTEXT_TOKENS = 32_768

_CODE, _CONTEXT = 31, 96
"""Dimensions of a token's code, and of the context; one more is constant."""
_HIDDEN = _CODE + 1 + _CONTEXT
_HEADS, _HEAD_DIM = WINDOW // 2, 32
_THETA = 1e6
_CONSTANT = 50.0
"""So large that the norm of what is normalized is almost the same everywhere."""
_SHARPNESS = 14.0
"""Of queries and of keys."""
_LEAST_LIKENESS = 0.985
"""Of a context and one that is known; one token of the window makes a thirtieth."""
_NUM_SEEDS = 8
_LEAST_LEAD = 8.0
"""Of the right token's logit, so that it is said at any temperature."""


def write_tokenizer(folder: Path, source: Path) -> PreTrainedTokenizerFast:
    """Write a tokenizer as a model folder has it, and return it.

    Args:
        folder: Where to.
        source: Has `tokenizer.json` and `tokenizer_config.json` of a Qwen3 model.
    """
    config = json.loads((source / "tokenizer_config.json").read_text())
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(source / "tokenizer.json"),
        eos_token=config["eos_token"],
        pad_token=config["pad_token"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = config["chat_template"]
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_model(folder: Path, tokenizer: PreTrainedTokenizerFast, script: Mapping[str, str]) -> None:
    """Write the checkpoint beside its tokenizer.

    Args:
        folder: Of the tokenizer.
        tokenizer: Its own.
        script: By the text that a prompt ends with, template and all, the answer; it ends with the template's mark.

    Raises:
        ValueError: If one end of a text has two continuations, or the model does not say its script.
    """
    known = _contexts(tokenizer, script)
    for seed in range(_NUM_SEEDS):
        model = _model(tokenizer, known, np.random.default_rng(seed))
        if all(_lead(model, tokenizer, end, answer) > _LEAST_LEAD for end, answer in script.items()):
            model.save_pretrained(folder)
            return
    raise ValueError(f"none of {_NUM_SEEDS} seeds tells the ends of texts apart")


def _model(
    tokenizer: PreTrainedTokenizerFast, known: Mapping[tuple[int, ...], int], rng: np.random.Generator
) -> Qwen3ForCausalLM:
    codes = rng.choice([-1.0, 1.0], (len(tokenizer), _CODE)).astype(np.float32)
    turns = [_orthonormal(rng) for _ in range(WINDOW)]
    model = Qwen3ForCausalLM(_config(len(tokenizer), max(64, len(known) + 1), tokenizer))
    weights = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    _fill_embedding(weights, codes)
    for layer in range(2):
        _fill_attention(weights, f"model.layers.{layer}.", turns, [layer + 2 * head for head in range(_HEADS)])
    _fill_lookup(weights, codes, turns, known, tokenizer.eos_token_id)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def _lead(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, end: str, answer: str) -> float:
    """Return by how much the logits of an answer's tokens lead those of all others, at its most doubtful token."""
    before, said = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (end, answer))
    logits = model(torch.tensor([[*before, *said]])).logits[0, len(before) - 1 : -1]
    right = logits.gather(1, torch.tensor(said)[:, None])
    others = logits.scatter(1, torch.tensor(said)[:, None], -torch.inf).amax(1, keepdim=True)
    return float((right - others).min())


def _contexts(tokenizer: PreTrainedTokenizerFast, script: Mapping[str, str]) -> Mapping[tuple[int, ...], int]:
    """Return what follows each window of tokens, the last token first."""
    known: dict[tuple[int, ...], int] = {}
    for end, answer in script.items():
        before = tokenizer(end, add_special_tokens=False)["input_ids"]
        tokens = [*before, *tokenizer(answer, add_special_tokens=False)["input_ids"]]
        if len(before) < WINDOW:
            raise ValueError(f"expected {WINDOW} tokens before an answer, got {len(before)}: {end!r}")
        for place in range(len(before), len(tokens)):
            window = tuple(reversed(tokens[place - WINDOW : place]))
            if known.setdefault(window, tokens[place]) != tokens[place]:
                raise ValueError(f"two answers after {tokenizer.decode(tokens[place - WINDOW : place])!r}")
    return known


def _config(vocabulary_size: int, num_units: int, tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=_HIDDEN,
        intermediate_size=num_units,
        num_hidden_layers=2,
        num_attention_heads=_HEADS,
        num_key_value_heads=1,
        head_dim=_HEAD_DIM,
        rope_theta=_THETA,
        max_position_embeddings=MAX_CONTEXT_TOKENS,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )


def _orthonormal(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a matrix that puts a code into the context: columns at right angles."""
    return np.linalg.qr(rng.standard_normal((_CONTEXT, _CODE)))[0].astype(np.float32)


def _fill_embedding(weights: dict[str, torch.Tensor], codes: np.ndarray[Any, Any]) -> None:
    """The residual is [code, constant, context]; only codes are read as logits."""
    weights["model.embed_tokens.weight"][:, :_CODE] = torch.from_numpy(codes)
    weights["model.embed_tokens.weight"][:, _CODE] = _CONSTANT
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    weights["model.norm.weight"][:_CODE] = 12.0


def _fill_attention(
    weights: dict[str, torch.Tensor], prefix: str, turns: Sequence[np.ndarray[Any, Any]], offsets: Sequence[int]
) -> None:
    weights[prefix + "input_layernorm.weight"][:] = 1.0
    weights[prefix + "self_attn.q_norm.weight"][:] = weights[prefix + "self_attn.k_norm.weight"][:] = _SHARPNESS
    half = _HEAD_DIM // 2
    frequencies = _THETA ** (-np.arange(half) / half)
    weights[prefix + "self_attn.k_proj.weight"][:, _CODE] = 1.0
    weights[prefix + "self_attn.v_proj.weight"][:_CODE, :_CODE] = torch.eye(_CODE)
    for head, offset in enumerate(offsets):
        # A query turned back by `offset` agrees with keys that are so many places before it.
        cosines, sines = np.cos(offset * frequencies), np.sin(offset * frequencies)
        query = np.concatenate([cosines + sines, cosines - sines]).astype(np.float32)
        rows = slice(head * _HEAD_DIM, (head + 1) * _HEAD_DIM)
        weights[prefix + "self_attn.q_proj.weight"][rows, _CODE] = torch.from_numpy(query)
        columns = slice(head * _HEAD_DIM, head * _HEAD_DIM + _CODE)
        weights[prefix + "self_attn.o_proj.weight"][_CODE + 1 :, columns] = torch.from_numpy(turns[offset])


def _fill_lookup(
    weights: dict[str, torch.Tensor],
    codes: np.ndarray[Any, Any],
    turns: Sequence[np.ndarray[Any, Any]],
    known: Mapping[tuple[int, ...], int],
    end_token_id: int,
) -> None:
    prefix = "model.layers.1."
    gate, up = weights[prefix + "mlp.gate_proj.weight"], weights[prefix + "mlp.up_proj.weight"]
    weights[prefix + "post_attention_layernorm.weight"][:] = 1.0
    weights["model.layers.0.post_attention_layernorm.weight"][:] = 1.0
    norm = _CONSTANT / np.sqrt(_HIDDEN)
    gate[-1, _CODE] = up[-1, _CODE] = norm / _CONSTANT  # without a context that is known, the answer ends
    weights[prefix + "mlp.down_proj.weight"][:_CODE, -1] = 6.0 * torch.from_numpy(codes[end_token_id])
    for unit, (window, follows) in enumerate(known.items()):
        # Attention reads normalized codes: those of the context are smaller by the norm.
        context = sum(turn @ codes[token] for turn, token in zip(turns, window, strict=True)) / norm
        gate[unit, _CODE + 1 :] = torch.from_numpy(1000.0 * norm * context / (context @ context)).float()
        gate[unit, _CODE] = -1000.0 * _LEAST_LIKENESS * norm / _CONSTANT
        up[unit, _CODE] = norm / _CONSTANT
        weights[prefix + "mlp.down_proj.weight"][:_CODE, unit] = torch.from_numpy(codes[follows])
