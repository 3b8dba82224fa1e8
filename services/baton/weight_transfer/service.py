"""baton.internal.v1.WeightService: gives other machines the files of models that are here, or come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import grpc
from crc32c import crc32c

from baton.errors import ConfigurationError, InvalidFieldError, NotFoundError, UnavailableError
from baton.internal.v1 import weight_service_pb2 as messages
from baton.internal.v1.weight_service_pb2_grpc import WeightServiceServicer, add_WeightServiceServicer_to_server
from baton.weight_transfer.pace import Pace
from baton.weights.hub import cached_models
from baton.weights.manifest import Manifest
from baton.weights.model_name import revision_of
from baton.weights.store import NOT_HERE, STALLED, WeightStore, default_store, read_range

T = TypeVar("T")
SERVICE_NAME = "baton.internal.v1.WeightService"
PIECE_BYTES = 1 << 20
"""Of a file, in one message: an event loop is busy with it for less than a millisecond."""
_POLL_SECONDS = 0.02
"""Pause before a file that comes is looked at again."""


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function does with a file, in a thread; who is cancelled waits for it, and closes the file then."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


class _Piece(NamedTuple):
    data: bytes
    checksum: int
    is_coming: bool


class WeightServicer(WeightServiceServicer):
    """Reads files of one machine."""

    def __init__(self, folders: Mapping[str, Path], pace: Pace, store: WeightStore | None = None) -> None:
        self._folders = folders
        self._pace = pace
        self._store = store or default_store()
        self._hashing = asyncio.Lock()

    def register(self, server: grpc.aio.Server) -> None:
        """Add itself to a server."""
        add_WeightServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]

    async def GetManifest(  # noqa: N802 - the name is the proto's
        self, request: messages.GetManifestRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> messages.GetManifestResponse:
        """Say which files make a model."""
        async with self._hashing:  # once, however many ask
            manifest = await asyncio.to_thread(self._manifest, request.model)
        if manifest is None:
            raise NotFoundError(f"model {request.model[:200]!r} is not here", reason=NOT_HERE)
        files = [
            messages.WeightFile(name=name, byte_count=size, sha256=sha256) for name, size, sha256 in manifest.files
        ]
        return messages.GetManifestResponse(model=manifest.name, revision=manifest.revision, files=files)

    async def FetchFile(  # noqa: N802
        self, request: messages.FetchFileRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[messages.FetchFileResponse]:
        """Give a range of a file, as far as it is here, and what follows as it comes."""
        if not re.fullmatch("[0-9a-f]{64}", request.sha256):
            raise InvalidFieldError("sha256", f"expected 64 lower-case hexadecimal digits, got {request.sha256[:64]!r}")
        if not 0 <= request.begin <= request.end:
            raise InvalidFieldError("begin", f"expected 0 to `end`, {request.end}, got {request.begin}")
        position = request.begin
        if not self._store.knows(request.sha256):
            async with self._hashing:
                await asyncio.to_thread(self._manifest, request.model)
        with self._store.open(request.sha256) as file:
            while position < request.end:
                piece = await in_thread(_read, file, position, min(PIECE_BYTES, request.end - position))
                if piece.data:
                    await self._pace.spend(len(piece.data))
                    yield messages.FetchFileResponse(content=piece.data, content_crc32c=piece.checksum)
                    position += len(piece.data)
                elif piece.is_coming:
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    problem = f"{position} bytes of it are here, and nobody brings more"
                    raise UnavailableError(f"file {request.sha256[:12]}: {problem}", reason=STALLED)

    def _manifest(self, model: str) -> Manifest | None:
        name, _, revision = model.partition("@")
        revision = "" if revision == "main" else revision
        if folder := self._folders.get(name):
            served = self._store.adopt(name, revision_of(folder), folder)
            if revision in ("", served.revision):
                return served
        if kept := self._store.manifest(model):
            return kept
        with suppress(ConfigurationError):
            for cached in reversed(cached_models()):
                if cached.name.repository == name and revision in ("", cached.name.revision):
                    return self._store.adopt(name, cached.name.revision, cached.folder)
        return None


def _read(file: BinaryIO, begin: int, num_bytes: int) -> _Piece:
    data, is_coming = read_range(file, begin, num_bytes)
    return _Piece(data, crc32c(data), is_coming)
