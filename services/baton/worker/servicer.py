"""baton.internal.v1.WorkerService: pauses of a node, and the files by which gateways come to know its model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from baton.errors import NotFoundError
from baton.internal.v1.worker_service_pb2 import FetchTokenizerRequest, FetchTokenizerResponse
from baton.text.tokenizer import TEXT_FILES, tokenizer_digest
from baton.worker.pausing import PausableNode, PausingServicer

_PIECE_BYTES = 1 << 20


class WorkerServicer(PausingServicer):
    """Serves WorkerService for one node."""

    def __init__(self, node: PausableNode, model_dir: Path) -> None:
        super().__init__(node)
        self._model_dir = model_dir

    async def FetchTokenizer(  # noqa: N802 - the name is the proto's
        self, request: FetchTokenizerRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[FetchTokenizerResponse]:
        """Give tokenizer, chat template and configuration."""
        found = await asyncio.to_thread(tokenizer_digest, self._model_dir, TEXT_FILES)
        if request.digest != found:
            text = f"this node's files of text have digest {found or 'none'}, not {request.digest[:64]!r}"
            raise NotFoundError(text, reason="TOKENIZER_NOT_FOUND")
        for path in filter(Path.is_file, (self._model_dir / name for name in TEXT_FILES)):
            content = await asyncio.to_thread(path.read_bytes)
            for offset in range(0, len(content) or 1, _PIECE_BYTES):
                yield FetchTokenizerResponse(name=path.name, content=content[offset : offset + _PIECE_BYTES])
