"""Models of well-known shapes with random weights: what a pass costs does not depend on what the weights say."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from baton.engine.runners.base import ModelInfo, kv_dtype_of
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from baton.engine.runners.torch.llama.model import LlamaModel
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.eager.linear import PACKED
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype, rounded
from baton.engine.runners.torch.transformers_model import ATTENTION_NAME, register_attention
from baton.kv.kv_format import KvLayout, LayerSpec

_WEIGHT_BYTES = {"int4": (4 + 32 / 64) / 8, "fp8": (8 + 32 / 128) / 8}
"""Of an element, with the 32 bits that a group has besides its codes."""


class Shape(NamedTuple):
    """Sizes of a dense model."""

    name: str
    family: type[Any]
    """transformers' class of its configuration."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    is_tied: bool

    @property
    def num_linear_parameters(self) -> int:
        """Return the parameters that multiply every token."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_head_parameters(self) -> int:
        """Return the parameters that multiply the tokens whose logits are wanted."""
        return self.hidden_size * self.vocabulary_size

    def step_bytes(self, batch_size: int, context: int, element_bytes: int, weight_dtype: WeightDtype) -> float:
        """Return the bytes that a decode step must read: all weights once, and each sequence's K and V."""
        kv = 2 * self.num_layers * self.num_kv_heads * self.head_dim * context * batch_size
        weight_bytes = _WEIGHT_BYTES.get(weight_dtype, element_bytes)
        return element_bytes * kv + weight_bytes * (self.num_linear_parameters + self.num_head_parameters)

    def prompt_flops(self, num_tokens: int) -> float:
        """Return the operations of computing a prompt: its products, the head once, and causal attention."""
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * num_tokens * (num_tokens + 1)
        return 2.0 * self.num_linear_parameters * num_tokens + 2.0 * self.num_head_parameters + attention


LLAMA_3_8B = Shape("llama-3-8b", LlamaConfig, 32, 4096, 14336, 32, 8, 128, 128_256, is_tied=False)
QWEN3_0_6B = Shape("qwen3-0.6b", Qwen3Config, 28, 1024, 3072, 16, 8, 128, 151_936, is_tied=True)
TINY = Shape("tiny", LlamaConfig, 2, 64, 128, 4, 2, 16, 512, is_tied=False)


def random_model(shape: Shape, *, dtype: torch.dtype, device: torch.device, attention: str, max_context: int) -> Any:
    """Return transformers' model of a shape, with random weights made on the device."""
    config = shape.family(
        vocab_size=shape.vocabulary_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=max_context,
        tie_word_embeddings=shape.is_tied,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    return model.eval().requires_grad_(False)


def random_runner(
    shape: Shape,
    *,
    dtype: torch.dtype,
    device: torch.device,
    num_blocks: int,
    max_batch_size: int,
    max_context: int,
    block_tokens: int = 16,
    weight_dtype: WeightDtype = "auto",
) -> CudaGraphRunner:
    """Return Baton's runner of a shape, its decode step captured where the device is CUDA's.

    Weights in few bits, the output projection's too, are made of random ones on the device.
    """
    register_attention()
    model = random_model(shape, dtype=dtype, device=device, attention=ATTENTION_NAME, max_context=max_context)
    spec = LayerSpec(shape.num_kv_heads, shape.head_dim, shape.head_dim, 0)
    layout = KvLayout(shape.name, "0" * 32, "", (spec,) * shape.num_layers, kv_dtype_of(str(dtype)))
    info = ModelInfo(
        layout=layout,
        num_linear_parameters=shape.num_linear_parameters,
        num_head_parameters=shape.num_head_parameters,
        num_attention_heads=shape.num_heads,
        head_dim=shape.head_dim,
        weight_bytes=dtype.itemsize * (shape.num_linear_parameters + shape.num_head_parameters),
        max_context_tokens=max_context,
        vocabulary_size=shape.vocabulary_size,
        eos_token_ids=(),
        engine="torch",
        device=str(device),
    )
    ops = choose_ops(device, dtype)
    if weight_dtype != "auto":
        head = model.get_output_embeddings()
        setattr(head, PACKED, rounded(head.weight, weight_dtype))
    return CudaGraphRunner(
        LlamaModel(model, layout, ops, weight_dtype=weight_dtype),
        info,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        ops=ops,
        max_batch_size=max_batch_size,
    )
