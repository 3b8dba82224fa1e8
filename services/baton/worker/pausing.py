"""baton.internal.v1.WorkerService: a node rests while its machine sleeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from baton.errors import NotFoundError, check_range
from baton.internal.v1 import worker_service_pb2
from baton.internal.v1.worker_service_pb2 import FetchTokenizerRequest, FetchTokenizerResponse
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceServicer
from baton.node.node import WorkerNode
from baton.security.access import current_caller
from baton.text.tokenizer import TEXT_FILES, tokenizer_digest
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)

SERVICE_NAME = "baton.internal.v1.WorkerService"
_POLL_SECONDS = 0.02
_PIECE_BYTES = 1 << 20
_LONGEST_WAIT_SECONDS = 3600.0
_LONGEST_LEASE_SECONDS = 3600.0
"""Who wants a node to rest for longer asks again: nobody takes one away for ever."""


class WorkerServicer(WorkerServiceServicer):
    """Serves WorkerService for one node: pauses it, at most until the last lease ends, and gives its tokenizer."""

    def __init__(self, node: WorkerNode, model_dir: Path) -> None:
        self._node = node
        self._model_dir = model_dir
        self._lease: asyncio.TimerHandle | None = None

    async def Pause(  # noqa: N802 - the name is the proto's
        self, request: worker_service_pb2.PauseRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_service_pb2.PauseResponse:
        """Pause, and wait for what runs."""
        current_caller().check_speaks_for(self._node.node_id)
        wait, lease = seconds_from_duration(request.wait), seconds_from_duration(request.lease)
        check_range("wait", wait, 0.0, _LONGEST_WAIT_SECONDS)
        check_range("lease", lease, 0.0, _LONGEST_LEASE_SECONDS, is_low_excluded=True)
        loop = asyncio.get_running_loop()
        self._end_lease()
        self._lease = loop.call_later(lease, self._resume)
        self._node.set_paused(is_paused=True)
        log.info("node_paused lease_seconds=%.1f", lease)
        deadline = loop.time() + wait
        while (num_left := self._num_requests()) and loop.time() < deadline:  # noqa: ASYNC110 - an engine tells no end
            await asyncio.sleep(_POLL_SECONDS)
        return worker_service_pb2.PauseResponse(request_count=num_left)

    async def Resume(  # noqa: N802
        self, _request: worker_service_pb2.ResumeRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> worker_service_pb2.ResumeResponse:
        """Take work again."""
        current_caller().check_speaks_for(self._node.node_id)
        self._resume()
        return worker_service_pb2.ResumeResponse()

    def _resume(self) -> None:
        if self._lease is not None:
            log.info("node_resumed")
        self._end_lease()
        self._node.set_paused(is_paused=False)

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _num_requests(self) -> int:
        load = self._node.engine.load()
        return load.num_waiting + load.num_running

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
