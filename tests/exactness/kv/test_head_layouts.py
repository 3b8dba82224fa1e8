"""Every way to share KV heads between query heads, from either framework's cache into the other's, by a real stream."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from baton.decode.kv_stream.reader import Timeouts
from baton.v1.generation_pb2 import KV_TRANSPORT_SHARED
from checkpoints import reference_generate
from decode.pair import Pair, generate, request_of, with_pair
from engine.rig import prompt_of
from exactness.loading import Framework, load_runner

PROMPT = prompt_of(45)
HEADS = [(4, 4, 16), (4, 1, 16), (6, 3, 32)]
"""Query heads, KV heads, and elements of one: one KV head for each, one for all, and larger heads than the model's."""
PLACEMENTS: list[tuple[Framework, Framework]] = [("torch", "mlx"), ("mlx", "torch")]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("placement", PLACEMENTS, ids="-".join)
def test_heads_arrive_where_they_belong(
    heads: tuple[int, int, int], placement: tuple[Framework, Framework], tmp_path: Path
) -> None:
    """The tokens are those of transformers: a head or an element out of place would change them."""
    pytest.importorskip("mlx_lm")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=heads[0] * 16,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=heads[2],
        eos_token_id=2,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    prefill, decode = (load_runner(framework, tmp_path, num_blocks=16) for framework in placement)

    async def client(nodes: Pair) -> None:
        answer = await generate(nodes, request_of(PROMPT, model_id="tiny"))

        assert answer.token_ids == reference_generate(tmp_path, list(PROMPT), 8)[: len(answer.token_ids)]
        assert (answer.summary.fallback_reason, answer.summary.kv_transport) == ("", KV_TRANSPORT_SHARED)
        assert decode.info.layout.layers[0].num_kv_heads == heads[1]

    with_pair(
        client,
        transport="auto",
        prefill_runner=prefill,
        decode_runner=decode,
        timeouts=Timeouts(60.0, 60.0),
        timeout_seconds=120.0,
    )
