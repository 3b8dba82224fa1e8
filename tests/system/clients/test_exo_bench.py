"""What exo's own benchmark would do with Baton, from the list of models to the deleted instance."""

from __future__ import annotations

import json
from typing import Any

import pytest

from system.clients.exo_client import SENSORS, ExoClient, content
from system.cluster import Cluster
from system.plan import MODEL_NAME

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 8


def _payload(model: str, prompt: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": OUTPUT_TOKENS,
        "logprobs": False,
        "use_prefix_cache": False,
        "temperature": 0.0,
    }


def _check(stats: Any) -> None:
    assert stats["prompt_tps"] > 0
    assert stats["generation_tps"] > 0
    assert stats["prompt_tokens"] >= PROMPT_TOKENS
    assert stats["generation_tokens"] == OUTPUT_TOKENS
    assert stats["peak_memory_usage"].get("inBytes") > 0


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_exos_benchmark_runs_on_every_placement(demo_cluster: Cluster, num_nodes: int) -> None:
    """Its whole sequence of calls; the requests run on the nodes of the instance, local or remote."""
    client = ExoClient(demo_cluster)
    model = client.model(MODEL_NAME)
    placements = {
        len(content(preview["instance"])["shardAssignments"]["nodeToRunner"]): preview
        for preview in client.placements(model)
    }
    assert set(placements) == {1, 2}
    instance = placements[num_nodes]["instance"]
    instance_id = content(instance)["instanceId"]
    for stale in client.call("GET", "/state")["instances"]:
        client.call("DELETE", f"/instance/{stale}")

    client.call("POST", "/instance", {"instance": instance})
    try:
        client.wait_ready(instance_id)
        snapshot = {name: client.part_of_state(name) for name in ("nodeIdentities", "topology", "nodeMemory")}
        assert all(snapshot.values())
        node_ids = list(content(instance)["shardAssignments"]["nodeToRunner"])
        for node_id in node_ids:
            path = f"nodeSystem/{node_id}"
            demo_cluster.wait_until(lambda path=path: client.part_of_state(path), f"{path} has a reading")  # type: ignore[misc]
            sensors = client.part_of_state(path)
            assert all(isinstance(sensors.get(name, 0.0), float) for name in SENSORS)
            assert 0 <= sensors["pcpuUsage"] <= 1
        answer = client.call("POST", "/bench/chat/completions", _payload(model, "a " * PROMPT_TOKENS))
        lines = list(client.lines("/bench/chat/completions", _payload(model, "a " * PROMPT_TOKENS)))
    finally:
        client.call("DELETE", f"/instance/{instance_id}")
    client.wait_gone(instance_id)

    _check(answer["generation_stats"])
    assert answer["choices"][0]["message"]["content"]
    assert {answer["baton"]["prefill_node"], answer["baton"]["decode_node"]} == set(node_ids)
    (comment,) = [line for line in lines if line.startswith(": generation_stats ")]
    _check(json.loads(comment.removeprefix(": generation_stats ")))
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    text = "".join(chunk.get("choices", [{}])[0].get("delta", {}).get("content") or "" for chunk in chunks)
    assert text == answer["choices"][0]["message"]["content"]
