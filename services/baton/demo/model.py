"""Defines the shape of the demo model, and the attention that makes its training quick on one CPU core."""

import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from baton.demo.vocabulary import END_ID, NUM_TOKENS, PAD_ID

MAX_POSITIONS = 4096
QUERY_BLOCK_TOKENS = 256


def new_model(attention: str = "causal_blocks") -> LlamaForCausalLM:
    """Return an untrained model of 2.4 million parameters, float32.

    Four layers give a KV stream an order to keep; two query heads to each KV head make attention grouped.

    Args:
        attention: Name of the attention implementation; `causal_blocks` is the one that this module registers.
    """
    config = LlamaConfig(
        vocab_size=NUM_TOKENS,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def causal_blocks(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    _attention_mask: torch.Tensor | None,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Attend causally, one block of queries at a time, without ever computing the blocks that causality masks.

    Plain bfloat16 matrix products over the heads that share a KV head run several times faster on a CPU than the fused
    kernel, which wants the KV heads expanded.

    | keys              | for queries in [s, s + block)      |
    |-------------------|------------------------------------|
    | [0, s)            | all visible                        |
    | [s, s + block)    | visible up to the query's position |
    | [s + block, L)    | never computed                     |

    Args:
        _module: The layer; unused.
        query: [batch, num_heads, L, head_dim].
        key: [batch, num_kv_heads, L, head_dim].
        value: As `key`.
        _attention_mask: Ignored: rows are not packed, and padding stands at the end, where nothing sees it.
        scaling: Factor on the scores.

    Returns:
        The attention's output, [batch, L, num_heads, head_dim], and no weights.
    """
    batch, num_heads, length, head_dim = query.shape
    num_kv_heads = key.shape[1]
    group = num_heads // num_kv_heads
    block = min(QUERY_BLOCK_TOKENS, length)
    grouped = (query * scaling).view(batch, num_kv_heads, group, length, head_dim)
    hidden = torch.full((block, block), float("-inf"), dtype=query.dtype).triu(1)
    outputs = []
    for start in range(0, length, block):
        end = min(start + block, length)
        rows = grouped[:, :, :, start:end].reshape(batch, num_kv_heads, -1, head_dim)
        scores = torch.matmul(rows, key[:, :, :end].transpose(2, 3)).view(batch, num_kv_heads, group, end - start, end)
        diagonal = scores[..., start:] + hidden[: end - start, : end - start]
        weights = torch.softmax(torch.cat([scores[..., :start], diagonal], -1), -1)
        mixed = torch.matmul(weights.view(batch, num_kv_heads, -1, end), value[:, :, :end])
        outputs.append(mixed.view(batch, num_heads, end - start, head_dim))
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


AttentionInterface.register("causal_blocks", causal_blocks)
