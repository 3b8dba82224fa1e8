"""Two models behind one gateway without one of its own: tokenizers, one away and back, one hot beside a cold one."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import AutoTokenizer

from baton.demo import checkpoint_dir
from baton.v1 import generation_service_pb2 as wire
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from checkpoints import checkpoint, reference_generate
from system.cluster import Cluster
from system.plan import EngineName
from system.rest import CHAT_PATH, Reply, ask, post

_MATRIX = "BATON_MATRIX" in os.environ
_ENGINE: EngineName = "torch" if _MATRIX else "mock"
_NUM_TOKENS = 12
_MAX_IN_WORK = 4
"""Requests for org/demo at once."""
_QUESTION = [{"role": "user", "content": "What is the capital of 12 + 30?"}]


def folders() -> Mapping[str, Path]:
    """Return the models by name; their tokenizers and templates are unlike."""
    return {"tiny": checkpoint("llama"), "org/demo": checkpoint_dir()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster whose second worker serves another model, with an alias for that one."""
    gateway = {"model_dir": "", "model_name": "", "model_aliases": "gpt=org/demo", "model_wait_seconds": "0"}
    gateway["model_max_concurrent_requests"] = f"org/demo={_MAX_IN_WORK}"
    gateway["tokenizer_cache_dir"] = str(tmp_path_factory.mktemp("tokenizers"))
    settings = {
        "gateway": gateway,
        "worker-1": {"model_dir": str(checkpoint_dir()), "model_name": "org/demo"},
        "worker": {"mock_step_seconds": "0.002"} if _ENGINE == "mock" else {},
    }
    with Cluster(checkpoint("llama"), prefill=(), decode=(), worker=(_ENGINE, _ENGINE), settings=settings) as running:
        running.wait_until(lambda: _states(running) == dict.fromkeys(folders(), "serving"), "both are served")
        yield running


def test_each_model_has_its_own_tokenizer_and_template(cluster: Cluster) -> None:
    """In all APIs, asked in turns; by an alias, too. Greedy tokens are transformers' where the engine computes."""
    for name, folder in 2 * [*folders().items()] + [("gpt", checkpoint_dir())]:
        own: Any = AutoTokenizer.from_pretrained(folder)
        expected = own.apply_chat_template(_QUESTION, add_generation_prompt=True, return_dict=False)
        chat = post(cluster, CHAT_PATH, _chat(name, return_token_ids=True)).body
        messages = {"model": name, "max_tokens": 4, "messages": _QUESTION}

        assert chat["model"] == name
        assert chat["prompt_token_ids"] == expected
        token_ids = chat["choices"][0]["token_ids"]
        assert chat["choices"][0]["message"]["content"] == own.decode(token_ids, skip_special_tokens=True)
        if _ENGINE == "torch":
            assert token_ids == reference_generate(folder, expected, len(token_ids), guess=token_ids)
        usage = post(cluster, "/v1/messages", messages).body["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(expected)
        responses = post(cluster, "/v1/responses", {"model": name, "max_output_tokens": 4, "input": _QUESTION})
        assert responses.body["usage"]["input_tokens"] == len(expected)
        with grpc.insecure_channel(cluster.grpc_address) as channel:
            stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
            tokens = stub.Tokenize(wire.TokenizeRequest(model=name, text="hello there"), timeout=60).token_ids
        assert list(tokens) == own("hello there")["input_ids"]


def test_models_are_listed_with_their_state(cluster: Cluster) -> None:
    """And an unknown name is told of those that there are, in every API."""
    rows = ask(cluster, "/v1/models", None, method="GET").body["data"]
    unknown = post(cluster, CHAT_PATH, _chat("org/dem0"))
    with grpc.insecure_channel(cluster.grpc_address) as channel:
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        listed = stub.ListModels(wire.ListModelsRequest(), timeout=60).models
        with pytest.raises(grpc.RpcError, match="model: expected one of org/demo, tiny, gpt"):
            stub.Tokenize(wire.TokenizeRequest(text="x"), timeout=60)

    expected = [("org/demo", "org/demo", "serving"), ("tiny", "tiny", "serving"), ("gpt", "org/demo", "serving")]
    assert [(row["id"], row["root"], row["state"]) for row in rows] == expected
    assert [(each.name, each.alias_of) for each in listed] == [("org/demo", ""), ("tiny", ""), ("gpt", "org/demo")]
    assert {each.state for each in listed} == {wire.MODEL_STATE_SERVING}
    assert unknown.error == (404, "model", "model_not_found")
    assert "`org/demo`" in unknown.body["error"]["message"]


def test_one_model_leaves_and_returns_while_the_other_is_served(cluster: Cluster) -> None:
    """Nobody who asks for the other one hears of it; the gateway is not started again."""
    replies: list[Reply] = []
    is_over = threading.Event()

    def ask_other() -> None:
        while not is_over.is_set():
            replies.append(post(cluster, CHAT_PATH, _chat("tiny")))

    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(ask_other)
        try:
            cluster.kill("worker-1")
            cluster.wait_until(lambda: _states(cluster)["org/demo"] != "serving", "the gateway misses it")
            away = post(cluster, CHAT_PATH, _chat("org/demo"))
            cluster.start("worker-1")
            cluster.wait_until(lambda: post(cluster, CHAT_PATH, _chat("gpt")).status == 200, "it is served again")
        finally:
            is_over.set()
        asking.result()

    assert away.status == 503
    assert int(away.headers["retry-after"]) >= 1
    assert replies
    assert {reply.status for reply in replies} == {200}


def test_a_model_whose_places_are_taken_leaves_the_other_its_own(cluster: Cluster) -> None:
    """Four times as many clients as it has places never cease to ask for one: of the other, no request is refused."""
    is_over = threading.Event()
    refused: list[str] = []

    def flood() -> None:
        while not is_over.is_set():
            reply = post(cluster, CHAT_PATH, _chat("gpt", max_tokens=200))
            if reply.status != 200:
                assert int(reply.headers["retry-after"]) >= 1
                refused.append(f"{reply.status} {reply.body['error']['message'].partition(';')[0]}")

    with ThreadPoolExecutor(4 * _MAX_IN_WORK) as clients:
        flooding = [clients.submit(flood) for _ in range(4 * _MAX_IN_WORK)]
        try:
            cluster.wait_until(lambda: refused, "its places are taken")
            cold = [post(cluster, CHAT_PATH, _chat("tiny")).status for _ in range(10)]
            rows = ask(cluster, "/ui/state", None, method="GET").body["models"]
            num_refused = len(refused)
            cluster.wait_until(lambda: len(refused) > num_refused, "they still are")
        finally:
            is_over.set()
        for each in flooding:
            each.result()

    assert cold == [200] * 10
    assert set(refused) == {f"429 {_MAX_IN_WORK} requests are in work already"}
    assert {row["name"]: 0 < row["requests"] <= _MAX_IN_WORK for row in rows} == {
        "org/demo": True,
        "gpt": True,
        "tiny": False,
    }


@pytest.mark.skipif(not _MATRIX, reason="measures times: run `make matrix`")
def test_a_hot_model_delays_a_cold_one_by_a_bounded_time(cluster: Cluster) -> None:
    """Sixty-four clients never cease to ask for one, some with prompts that fill its context; the other is asked now

    and then: its longest wait stays below a second more than it is alone, on the same two cores.
    """
    alone = [_seconds(cluster) for _ in range(10)]
    is_over = threading.Event()

    def flood(number: int) -> None:
        text = f"{number} " * (600 if number % 4 == 0 else 20)
        while not is_over.is_set():
            post(cluster, CHAT_PATH, _chat("tiny", messages=[{"role": "user", "content": text}]))

    with ThreadPoolExecutor(64) as threads:
        flooding = [threads.submit(flood, number) for number in range(64)]
        try:
            beside = [_seconds(cluster) for _ in range(20)]
        finally:
            is_over.set()
        for each in flooding:
            each.result()

    print(f"cold alone {statistics.median(alone):.3f} s, beside {statistics.median(beside):.3f} to {max(beside):.3f} s")
    assert max(beside) < max(alone) + 1.0


def _chat(model: str, **fields: Any) -> Mapping[str, Any]:
    return {"model": model, "messages": _QUESTION, "max_tokens": _NUM_TOKENS, "temperature": 0, **fields}


def _seconds(cluster: Cluster) -> float:
    began = time.monotonic()
    assert post(cluster, CHAT_PATH, _chat("org/demo", max_tokens=1)).status == 200
    return time.monotonic() - began


def _states(cluster: Cluster) -> Mapping[str, str]:
    """Return the state of each model by name, without aliases."""
    rows = ask(cluster, "/v1/models", None, method="GET").body["data"]
    return {row["id"]: row["state"] for row in rows if row["id"] == row["root"]}
