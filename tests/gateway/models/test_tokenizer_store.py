"""Tokenizers that a gateway fetches from nodes: what comes is checked, and comes once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from baton.errors import BatonError, NotFoundError, StreamBrokenError
from baton.gateway.models import tokenizer_store
from baton.gateway.models.tokenizer_store import TokenizerStore
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.worker_service_pb2 import FetchTokenizerResponse
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from baton.rpc.server import GrpcServer
from baton.text.tokenizer import TEXT_FILES, tokenizer_digest
from baton.worker.pausing import SERVICE_NAME, WorkerServicer
from text.tokenizer_folders import byte_level, save, word_piece


class Wrong(WorkerServicer):
    """Gives pieces that a test chooses."""

    def __init__(self, *pieces: FetchTokenizerResponse) -> None:
        self._pieces = pieces

    async def FetchTokenizer(self, request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Give them, whatever is asked for."""
        for piece in self._pieces:
            yield piece


@asynccontextmanager
async def served(servicer: WorkerServiceServicer, digest: str) -> AsyncIterator[NodeDescription]:
    """Return a node that tells of a digest, and serves."""
    server = GrpcServer("127.0.0.1:0")
    server.add(SERVICE_NAME, partial(add_WorkerServiceServicer_to_server, servicer))
    port = await server.start()
    try:
        yield NodeDescription(node_id="n", address=f"127.0.0.1:{port}", text_digest=digest)
    finally:
        await server.drain(0)


def store_in(folder: Path) -> TokenizerStore:
    """Return a store; formats are as templates have them."""
    return TokenizerStore(folder, tool_format="auto", reasoning_format="auto")


def servicer_of(folder: Path) -> WorkerServicer:
    """Return what a node whose model lies in a folder serves."""
    node: Any = None
    return WorkerServicer(node, folder)


def ask(servicer: WorkerServiceServicer, digest: str, store: TokenizerStore) -> Any:
    """Return what a store opens of a node."""

    async def run() -> Any:
        async with served(servicer, digest) as node:
            return await store.open("m", node)

    return asyncio.run(run())


def test_what_a_node_has_comes_once_for_all_gateways_of_a_machine(tmp_path: Path, monkeypatch: Any) -> None:
    """In pieces; another gateway, and one that is started again, asks nobody. Weights are not among it."""
    monkeypatch.setattr("baton.worker.pausing._PIECE_BYTES", 1000)
    model = save(byte_level(), tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"weights")
    digest, cache = tokenizer_digest(model, TEXT_FILES), tmp_path / "cache"

    text = ask(servicer_of(model), digest, store_in(cache))
    again = ask(Wrong(), digest, store_in(cache))

    assert text.tokenizer.encode("hello") == again.tokenizer.encode("hello") == byte_level().encode("hello")
    assert text.tokenizer.digest == tokenizer_digest(model)
    assert {path.name for path in (cache / digest).iterdir()} == {path.name for path in model.glob("*[nja]")}
    assert [path.name for path in cache.iterdir()] == [digest]


def test_a_folder_that_has_changed_is_not_given(tmp_path: Path) -> None:
    """Neither by the node, nor out of the cache: there it is fetched again."""
    model, cache = save(byte_level(), tmp_path / "model"), tmp_path / "cache"
    digest = tokenizer_digest(model, TEXT_FILES)
    ask(servicer_of(model), digest, store_in(cache))
    (cache / digest / "tokenizer.json").write_text("{}")

    assert ask(servicer_of(model), digest, store_in(cache)).tokenizer.encode("hello")
    save(word_piece(), model)
    with pytest.raises(NotFoundError, match="digest"):
        ask(servicer_of(model), digest, store_in(tmp_path / "other"))


@pytest.mark.parametrize(
    ("digest", "piece", "problem"),
    [
        ("0" * 32, FetchTokenizerResponse(name="tokenizer.json", content=b"{}"), "text_digest: expected 0000"),
        ("0" * 32, FetchTokenizerResponse(name="../key", content=b"x"), r"got a file '\.\./key'"),
        ("0" * 32, FetchTokenizerResponse(name="vocab.txt", content=bytes(2000)), "got 2000 bytes"),
        ("../" * 10 + "up", FetchTokenizerResponse(), "older versions"),
        ("", FetchTokenizerResponse(), "set model_dir"),
    ],
)
def test_what_no_honest_node_sends_is_refused(
    tmp_path: Path, monkeypatch: Any, digest: str, piece: FetchTokenizerResponse, problem: str
) -> None:
    """And nothing of it stays."""
    monkeypatch.setattr(tokenizer_store, "MAX_BYTES", 1000)

    with pytest.raises(StreamBrokenError, match=problem):
        ask(Wrong(piece), digest, store_in(tmp_path / "cache"))

    assert not [*tmp_path.rglob("*.*")]


@pytest.mark.parametrize("prepare", [Path.mkdir, lambda _folder: None])
def test_a_node_that_is_gone_is_an_error_like_any_other(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """Whether there is a cache already or not."""
    prepare(tmp_path / "cache")
    node = NodeDescription(node_id="n", address="127.0.0.1:1", text_digest="0" * 32)

    with pytest.raises(BatonError, match="connect"):
        asyncio.run(store_in(tmp_path / "cache").open("m", node))


def test_where_the_cache_cannot_be_written_another_folder_stands_in(tmp_path: Path) -> None:
    """As in a container whose root is read-only."""
    model = save(byte_level(), tmp_path / "model")
    (tmp_path / "file").touch()

    text = ask(servicer_of(model), tokenizer_digest(model, TEXT_FILES), store_in(tmp_path / "file" / "cache"))

    assert text.tokenizer.encode("hello")


def test_the_folders_that_were_used_last_are_kept(tmp_path: Path, monkeypatch: Any) -> None:
    """As many as there may be."""
    monkeypatch.setattr(tokenizer_store, "MAX_FOLDERS", 1)
    models = [save(each(), tmp_path / each.__name__) for each in (byte_level, word_piece)]
    store = store_in(tmp_path / "cache")
    for model in models:
        ask(servicer_of(model), tokenizer_digest(model, TEXT_FILES), store)

    assert [path.name for path in (tmp_path / "cache").iterdir()] == [tokenizer_digest(models[1], TEXT_FILES)]
