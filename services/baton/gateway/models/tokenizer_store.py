"""Tokenizers that nodes give by digest, kept on disk: what one gateway has fetched once it never fetches again."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path

import grpc

from baton.errors import StreamBrokenError
from baton.gateway.models.served_model import ModelText, open_text
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.worker_service_pb2 import FetchTokenizerRequest, FetchTokenizerResponse
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceStub
from baton.rpc.loop_channel import LoopChannel, LoopStream
from baton.rpc.status import error_from_rpc
from baton.text.tokenizer import TEXT_FILES, tokenizer_digest

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
"""Of one model's files; the largest vocabularies come to 40 MB."""
MAX_FOLDERS = 64
"""Kept on disk; those unused for longest go."""
FETCH_SECONDS = 120.0
_DIGEST = re.compile(r"[0-9a-f]{32}")
_UNREADABLE = "TOKENIZER_UNREADABLE"


class TokenizerStore:
    """Opens tokenizers. Several gateways may share the folder: each file is in place before its folder has its name.

    Where it cannot be written, one of the system's temporary folders stands in.
    """

    def __init__(self, folder: Path, *, tool_format: str, reasoning_format: str) -> None:
        self._folder = folder
        self._formats = {"tool_format": tool_format, "reasoning_format": reasoning_format}

    async def open(self, name: str, node: NodeDescription) -> ModelText:
        """Return the tokenizer of a node's model; the name is for the log. Raises BatonError if it gets none."""
        digest = node.text_digest
        if not _DIGEST.fullmatch(digest):
            text = f"node {node.node_id} gives no tokenizer, as nodes of older versions: upgrade it, or set model_dir"
            raise StreamBrokenError(text, reason=_UNREADABLE)
        folder = await asyncio.to_thread(self._known, digest)
        if folder is None:
            folder = await self._fetch(digest, node)
            log.info("tokenizer_fetched model=%s node=%s digest=%s", name, node.node_id, digest)
        return await asyncio.to_thread(open_text, folder, name, **self._formats)

    def _known(self, digest: str) -> Path | None:
        """Return the folder of a digest, if it holds what has that digest; another content is thrown away."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            tempfile.TemporaryFile(dir=self._folder).close()
        except OSError as error:
            shown = self._folder
            self._folder = Path(tempfile.mkdtemp(prefix="baton-tokenizers-"))
            log.warning("tokenizer_cache_unwritable folder=%s cause=%r instead=%s", shown, error, self._folder)
        folder = self._folder / digest
        if tokenizer_digest(folder, TEXT_FILES) == digest:
            os.utime(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        return None

    async def _fetch(self, digest: str, node: NodeDescription) -> Path:
        arriving = Path(tempfile.mkdtemp(prefix="arriving-", dir=self._folder))
        try:
            async with asyncio.timeout(FETCH_SECONDS), LoopChannel(node.address) as channel:
                stub = WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
                call: LoopStream[FetchTokenizerResponse] = stub.FetchTokenizer(FetchTokenizerRequest(digest=digest))
                await _receive(call, arriving)
            if (found := await asyncio.to_thread(tokenizer_digest, arriving, TEXT_FILES)) != digest:
                raise StreamBrokenError(f"text_digest: expected {digest}, got files of {found}", reason=_UNREADABLE)
            return await asyncio.to_thread(self._keep, arriving, digest)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except (OSError, TimeoutError) as error:
            text = f"the tokenizer of node {node.node_id} did not come: {error or 'it took too long'}"
            raise StreamBrokenError(text, reason=_UNREADABLE) from error
        finally:
            shutil.rmtree(arriving, ignore_errors=True)

    def _keep(self, arriving: Path, digest: str) -> Path:
        """Give a folder its name, unless another gateway has; drop what nobody has used for longest."""
        folder = self._folder / digest
        if not folder.exists():
            arriving.replace(folder)
        kept = sorted((path for path in self._folder.iterdir() if _DIGEST.fullmatch(path.name)), key=_used_at)
        for old in kept[:-MAX_FOLDERS]:
            shutil.rmtree(old, ignore_errors=True)
        return folder


async def _receive(call: LoopStream[FetchTokenizerResponse], folder: Path) -> None:
    """Write files as they come; raise StreamBrokenError if they are too large, or one has a strange name."""
    num_bytes = 0
    async for piece in call:
        num_bytes += len(piece.content)
        if piece.name not in TEXT_FILES or num_bytes > MAX_BYTES:
            call.cancel()
            problem = f"{num_bytes} bytes" if piece.name in TEXT_FILES else f"a file {piece.name[:64]!r}"
            raise StreamBrokenError(f"expected {MAX_BYTES} bytes of tokenizer files, got {problem}", reason=_UNREADABLE)
        with (folder / piece.name).open("ab") as file:
            file.write(piece.content)


def _used_at(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0
