"""Adapters through all processes: loaded by nodes, placed by the router, asked for by clients like models."""

from __future__ import annotations

import json
from pathlib import Path

from adapters import adapter_folder, differ, is_greedy, random_prompt
from system.client import Ask, open_grpc
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import CHAT, CHAT_PATH, ask

NUM_NEW_TOKENS = 12


def test_clients_choose_an_adapter_by_the_name_of_the_model(llama_cluster: Cluster) -> None:
    """Equal prompts at the same time, twice: every model says its own, and none is served another's cache."""
    prompt = random_prompt(70)
    by_model: dict[str, Path | None] = {
        MODEL_NAME: None,
        "one": adapter_folder("llama", 1),
        "two": adapter_folder("llama", 2),
    }
    for _ in range(2):
        streams = [open_grpc(llama_cluster, Ask(prompt, NUM_NEW_TOKENS, model=model)) for model in by_model]
        outcomes = [stream.outcome() for stream in streams]

        assert [outcome.error for outcome in outcomes] == ["", "", ""]
        for folder, outcome in zip(by_model.values(), outcomes, strict=True):
            assert is_greedy("llama", folder, prompt, outcome.token_ids)
            assert outcome.placement.prefill_node_id == "prefill-0"
            assert outcome.placement.fallback_reason == ""
        assert differ([outcome.token_ids for outcome in outcomes])
    llama_cluster.wait_idle()


def test_adapters_are_listed_as_models_with_a_parent(llama_cluster: Cluster) -> None:
    """The list, a single model, and the answer of a chat that asks for one."""
    listed = ask(llama_cluster, "/v1/models", None, method="GET").body["data"]
    single = ask(llama_cluster, "/v1/models/two", None, method="GET").body
    chat = ask(llama_cluster, CHAT_PATH, json.dumps({**CHAT, "model": "two"}).encode())

    assert [(model["id"], model["parent"]) for model in listed] == [
        (MODEL_NAME, None),
        ("one", MODEL_NAME),
        ("two", MODEL_NAME),
    ]
    assert single == listed[2]
    assert chat.status == 200
    assert chat.body["model"] == "two"


def test_an_unknown_adapter_is_an_unknown_model(llama_cluster: Cluster) -> None:
    """The error is OpenAI's."""
    assert ask(llama_cluster, CHAT_PATH, json.dumps({**CHAT, "model": "three"}).encode()).error == (
        404,
        "model",
        "model_not_found",
    )
