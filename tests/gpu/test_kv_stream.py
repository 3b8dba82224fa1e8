"""How much of the KV stream from the device to a decode node on the CPU is hidden behind prefill; kept as JSON."""

from __future__ import annotations

import json
import random
import statistics
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

from baton.v1.generation_pb2 import KvTransport, PlacementSummary
from checkpoints import checkpoint
from gpu.device import DEVICE, IS_CUDA, SEED, keep
from packed_checkpoints import with_tokenizer
from system.client import Ask, Outcome, open_grpc
from system.cluster import Cluster

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = (
    (8, 2048, 6144, 16, 8, 128) if IS_CUDA else (3, 64, 96, 4, 2, 16)
)
"""Qwen3-1.7B's, but for its vocabulary and 20 of its 28 layers: it is made, loaded twice and measured in a minute."""
VOCABULARY = 4096 if IS_CUDA else 512
MAX_CONTEXT = 4352
LENGTHS = (512, 2048, 4096) if IS_CUDA else (128, 300)
NUM_SAMPLES, NUM_TOGETHER, NUM_NEW_TOKENS = 3, 4, 4
_STARTED = time.monotonic()


def say(step: str) -> None:
    """Print what comes next, and after how long: a run that is cut tells what it waited for."""
    print(f"kv-stream: {time.monotonic() - _STARTED:.1f} s: {step}", flush=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model with random weights, quickly."""
    say("a model is made")
    folder = tmp_path_factory.mktemp("random") / "qwen3-1.7b"
    folder.mkdir()
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    told = config.to_dict() | {"architectures": ["Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(told))
    with_tokenizer(checkpoint("qwen3"), folder)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"self_attn.q_proj": (queries, HIDDEN), "self_attn.o_proj": (HIDDEN, queries)}
    shapes |= {f"self_attn.{name}_proj": (keys, HIDDEN) for name in "kv"}
    shapes |= {f"mlp.{name}_proj": (INTERMEDIATE, HIDDEN) for name in ("gate", "up")}
    shapes |= {"mlp.down_proj": (HIDDEN, INTERMEDIATE)}
    torch.manual_seed(SEED)
    tensors = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, device=DEVICE)}
    ones = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    ones |= {"self_attn.q_norm": HEAD_DIM, "self_attn.k_norm": HEAD_DIM}
    for layer in range(LAYERS):
        base = f"model.layers.{layer}."
        for name, shape in shapes.items():
            tensors[f"{base}{name}.weight"] = torch.randn(shape, device=DEVICE) * shape[1] ** -0.5
        tensors |= {f"{base}{name}.weight": torch.ones(size) for name, size in ones.items()}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    narrow = {name: tensor.bfloat16().cpu() for name, tensor in tensors.items()}
    say("it is written")
    save_file(narrow, folder / "model.safetensors", {"format": "pt"})
    return folder


def told(outcome: Outcome) -> dict[str, float]:
    """Return the times of a request, seconds, and what was sent."""
    summary: PlacementSummary = outcome.placement
    assert outcome.error == ""
    assert summary.fallback_reason == ""
    assert summary.prefill_node_id == "prefill-0"
    seconds = {
        name: getattr(summary, f"{name}_duration").ToNanoseconds() / 1e9
        for name in ("queue", "prefill", "transfer", "exposed", "decode", "join")
    }
    transfer, exposed = seconds["transfer"], seconds["exposed"]
    hidden = 1 - min(1.0, exposed / transfer) if transfer > 0 else 1.0
    sent = {"bytes": summary.kv_byte_count, "frames": summary.kv_frame_count, "tokens": len(outcome.token_ids)}
    return {**seconds, "hidden_share": hidden, "request": outcome.seconds, **sent}


def ask_of(draw: random.Random, length: int) -> Ask:
    """Return a request that no cache knows."""
    return Ask(tuple(draw.choices(range(3, 512), k=length)), NUM_NEW_TOKENS, cache_salt=f"{draw.random()}")


def test_the_stream_is_measured(folder: Path) -> None:
    """Prompts one by one and several at once, in bfloat16, all computed on the device and decoded on the CPU."""
    draw = random.Random(SEED)
    number_format = {"dtype": "bfloat16" if IS_CUDA else "float32"}
    blocks = {"num_blocks": str(NUM_TOGETHER * MAX_CONTEXT // 16 + 64 if IS_CUDA else 256)}
    settings = {
        "router": {"prefill_policy": "remote"},
        "prefill": {"device": str(DEVICE), "max_step_tokens": "2048", **number_format, **blocks},
        "decode": {"device": "cpu", "num_threads": "12" if IS_CUDA else "1", **number_format, **blocks},
    }
    rows: dict[str, object] = {}
    started = time.monotonic()
    say("the processes start")
    with Cluster(folder, prefill=("torch",), decode=("torch",), settings=settings) as cluster:
        rows["start_seconds"] = time.monotonic() - started
        say("a first prompt")
        open_grpc(cluster, ask_of(draw, LENGTHS[0])).outcome()
        for length in LENGTHS:
            say(f"prompts of {length} tokens")
            samples = [told(open_grpc(cluster, ask_of(draw, length)).outcome()) for _ in range(NUM_SAMPLES)]
            rows[f"{length} tokens"] = {key: statistics.median(each[key] for each in samples) for key in samples[0]}
        say(f"{NUM_TOGETHER} prompts at once")
        streams = [open_grpc(cluster, ask_of(draw, LENGTHS[1])) for _ in range(NUM_TOGETHER)]
        rows[f"{NUM_TOGETHER} x {LENGTHS[1]} tokens"] = together = [told(stream.outcome()) for stream in streams]
        transport = open_grpc(cluster, ask_of(draw, LENGTHS[0])).outcome().placement.kv_transport
        rows["transport"] = KvTransport.Name(transport)
        say("blocks become free")
        cluster.wait_idle()
    keep("kv-stream", rows)

    assert all(each["tokens"] == NUM_NEW_TOKENS for each in together)
    assert all(each["bytes"] > 0 for each in together)
