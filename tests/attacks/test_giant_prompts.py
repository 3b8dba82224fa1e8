"""Finding 13: one giant prompt, refused afterwards, keeps everybody from the tokenizer for half a second and more."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from attacks.victims import Damage, full
from baton.gateway.generation.preparation import PromptThreads
from baton.gateway.generation.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from baton.gateway.memory import LONG_CHARACTERS
from baton.text.tokenizer import Tokenizer
from checkpoints import checkpoint
from gateway.fake_cluster import CONTEXT_TOKENS, MODEL, FakeCluster, Loop
from gateway.http.raw_client import exchange, post, status_of
from system.cluster import Cluster
from system.plan import MODEL_NAME
from text.tokenizer_folders import byte_level, save

SECONDS = 60.0
LONG: dict[str, Prompt] = {
    "text": TextPrompt("x" * (LONG_CHARACTERS + 1)),
    "tokens": TokenPrompt([1] * (LONG_CHARACTERS + 1)),
    "conversation": ChatPrompt(({"role": "user", "content": "x" * (LONG_CHARACTERS + 1)},)),
}


@pytest.mark.parametrize("kind", LONG)
def test_short_prompts_pass_long_ones(kind: str) -> None:
    """However many of those there are, and with one thread for short ones."""
    may_end = threading.Event()

    def tokenize() -> str:
        assert may_end.wait(SECONDS)
        return "long"

    async def run() -> None:
        threads = PromptThreads(1)
        waiting = [asyncio.ensure_future(threads.run(LONG[kind], tokenize)) for _ in range(4)]
        await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            assert await threads.run(TextPrompt("x" * LONG_CHARACTERS), lambda: "short") == "short"
            may_end.set()
            assert await asyncio.gather(*waiting) == ["long"] * 4
        threads.close()

    asyncio.run(run())


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of texts that are tokenized."""
    sizes: list[int] = []
    encode = Tokenizer.encode

    def count(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = True) -> list[int]:
        sizes.append(len(text))
        return encode(tokenizer, text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(Tokenizer, "encode", count)
    return sizes


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Run an event loop in a thread."""
    loop = Loop()
    yield loop
    loop.close()


def test_a_prompt_that_cannot_fit_is_not_tokenized(loop: Loop, tmp_path: Path, texts: list[int]) -> None:
    """A part of it, if that: what was refused after half a second is refused at once."""
    sizes = [17 * CONTEXT_TOKENS, 64 * CONTEXT_TOKENS, 65 * CONTEXT_TOKENS]
    with loop.running(FakeCluster(save(byte_level(), tmp_path))) as gateway:
        texts.clear()
        for size in sizes:
            body = json.dumps({"model": MODEL, "prompt": "x" * size, "max_tokens": 1}).encode()
            answer = exchange(gateway, post("/v1/completions", body, "connection: close"))

            assert status_of(answer) == 400
            assert b"context" in answer

    assert texts == [8 * CONTEXT_TOKENS] * 2


@full
def test_giant_prompts_keep_nobody_waiting(tmp_path: Path) -> None:
    """Four of 2 MB at once, refused in the end by a model of long contexts; others ask for a token meanwhile."""
    model_dir = tmp_path / "model"
    shutil.copytree(checkpoint("llama"), model_dir)
    config = json.loads((model_dir / "config.json").read_text())
    (model_dir / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 200_000}))
    giant = json.dumps({"model": MODEL_NAME, "prompt": "all work and no play " * 100_000, "max_tokens": 1})
    small = json.dumps({"model": MODEL_NAME, "prompt": "hi", "max_tokens": 1})
    settings = {"decode": {"num_blocks": "16384"}}
    with Cluster(model_dir, prefill=(), decode=("mock",), settings=settings) as cluster:

        def ask(body: str) -> int:
            connection = http.client.HTTPConnection(*cluster.http_address, timeout=SECONDS)
            with contextlib.closing(connection):
                connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
                response = connection.getresponse()
                response.read()
                return response.status

        damage = Damage(cluster.pid_of("gateway"), lambda: check_served(ask(small)))
        with damage, ThreadPoolExecutor(4) as threads:
            statuses = set(threads.map(ask, [giant] * 4))
        print(f"4 prompts of 2 MB: {sorted(statuses)}, {damage}")

    assert statuses <= {400, 429, 503}
    assert damage.longest_wait_seconds < 1.5


def check_served(status: int) -> None:
    """Check a status."""
    assert status == 200
