"""Real processes with one engine on the device and one on the CPU: tokens are transformers' over gRPC, too."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from checkpoints import CheckpointName, checkpoint
from gpu.device import DEVICE, prompt_of
from gpu.equality import check_tokens
from system.client import Ask, open_grpc
from system.cluster import Cluster

LENGTHS = (1, 16, 17, 75, 300, 700)
NUM_NEW_TOKENS = 48
ON_DEVICE = {"device": str(DEVICE), "dtype": "float32"}
ON_CPU = {"device": "cpu", "dtype": "float32"}
PAIRS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "device-to-cpu": {"prefill": ON_DEVICE, "decode": ON_CPU},
    "cpu-to-device": {"prefill": ON_CPU, "decode": ON_DEVICE},
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_prefill_and_a_decode_node(pair: str, name: CheckpointName) -> None:
    """Prompts at once, longer than a pass, then again from what is cached: greedy as transformers, drawn as before."""
    settings = {"router": {"prefill_policy": "remote"}, **PAIRS[pair]}
    settings["prefill"] = {**settings["prefill"], "max_step_tokens": "256"}
    with Cluster(checkpoint(name), prefill=("torch",), decode=("torch",), settings=settings) as cluster:
        drawn = []
        for salt in ("cold", "cold", "other"):
            asks = [Ask(tuple(prompt_of(length)), NUM_NEW_TOKENS, cache_salt=salt) for length in LENGTHS]
            asks.append(Ask(tuple(prompt_of(90)), NUM_NEW_TOKENS, temperature=0.8, seed=5, cache_salt=salt))
            outcomes = [stream.outcome() for stream in [open_grpc(cluster, ask) for ask in asks]]
            assert [outcome.error for outcome in outcomes] == [""] * len(asks)
            for ask, outcome in list(zip(asks, outcomes, strict=True))[:-1]:
                check_tokens(checkpoint(name), ask.prompt_token_ids, outcome.token_ids)
            drawn.append(outcomes[-1].token_ids)
            if salt == "other":
                placements = [outcome.placement for outcome in outcomes]
                assert {each.prefill_node_id for each in placements} == {"prefill-0"}
                assert {each.fallback_reason for each in placements} == {""}
        assert drawn[0] == drawn[1] == drawn[2]
        cluster.wait_idle()
        logs = {node: log.read_text() for node, log in cluster.log_files.items()}
        assert {node: log for node, log in logs.items() if "Traceback" in log} == {}


def test_a_worker_that_does_both() -> None:
    """One process on the device, whose decode is captured: many at once, greedy and drawn side by side."""
    settings = {"worker": {**ON_DEVICE, "max_batch_size": "8"}}
    with Cluster(checkpoint("qwen3"), prefill=(), decode=(), worker=("torch",), settings=settings) as cluster:
        asks = [
            Ask(tuple(prompt_of(20 + 9 * index)), NUM_NEW_TOKENS, temperature=0.8 * (index % 3 == 2), seed=index)
            for index in range(12)
        ]
        together = [stream.outcome() for stream in [open_grpc(cluster, ask) for ask in asks]]
        alone = [open_grpc(cluster, ask).outcome() for ask in asks]
        for ask, one, other in zip(asks, together, alone, strict=True):
            assert one.error == other.error == ""
            assert one.token_ids == other.token_ids
            if not ask.temperature:
                check_tokens(checkpoint("qwen3"), ask.prompt_token_ids, one.token_ids)
        cluster.wait_idle()
