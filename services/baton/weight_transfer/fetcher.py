"""Takes a model from other machines, while it still comes to them: what is wrong or lost is asked of another one."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import grpc
from crc32c import crc32c

from baton.errors import BatonError, ConfigurationError, StreamBrokenError, UnavailableError
from baton.internal.v1 import weight_service_pb2 as messages
from baton.internal.v1.weight_service_pb2_grpc import WeightServiceStub
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc
from baton.weight_transfer.service import in_thread
from baton.weights.hub import FetchProgress, model_folder
from baton.weights.manifest import FileDigest, Manifest, make_manifest
from baton.weights.model_name import HUB_NAME, HubName, is_folder
from baton.weights.store import ArrivingFile, WeightStore, default_store

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""Without a byte from anybody, after which a fetch has failed; what has come stays."""
_SILENT_SECONDS = 10.0
"""Of waiting for one source, after which another one is asked, unless so much has come."""
_LEAST_BYTES = 128 << 10
_PAUSE_SECONDS = 0.2
"""Before all are asked again."""
_NUM_FILES = 4
"""That come at once."""

OnProgress = Callable[[FetchProgress], None]


async def bring_model(
    model: str, sources: Sequence[str], on_progress: OnProgress, *, patience_seconds: float = PATIENCE_SECONDS
) -> Path:
    """Return the folder of a model: from other machines, else from the hub. It can be cancelled, and begun again.

    Args:
        model: Folder, `org/name[@revision]` of a hub, or any name under which the sources serve it.
        sources: host:port of WeightServices of machines that have it, or are getting it; those to be asked first first.
        on_progress: Told of what comes.
        patience_seconds: Without a byte from other machines.

    Raises ConfigurationError if nobody gives it; the message has the remedy.
    """
    if sources and not is_folder(model):
        try:
            name, store = model.removeprefix("hf://"), default_store()
            return await fetch_from(sources, name, store, on_progress, patience_seconds=patience_seconds)
        except BatonError as error:
            if isinstance(error, ConfigurationError) or not HUB_NAME.fullmatch(model):
                raise ConfigurationError(error.message) from error
            log.warning("weights_asked_of_hub model=%s cause=%r", model, error.message)
    is_cancelled = threading.Event()

    def tell(progress: FetchProgress) -> None:
        if is_cancelled.is_set():
            raise UnavailableError("the fetch was cancelled")  # ends the thread
        on_progress(progress)

    try:
        return await asyncio.to_thread(model_folder, model, tell)
    finally:
        is_cancelled.set()


async def fetch_from(
    sources: Sequence[str],
    model: str,
    store: WeightStore,
    on_progress: OnProgress,
    *,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Path:
    """Return the folder, in a store, of a model that other machines have, or are getting.

    Raises:
        ConfigurationError: If the disk does not hold it.
        UnavailableError: If for `patience_seconds` none of them gave anything; each one's cause is told.
        InvalidFieldError: If what they say is no model.
    """
    async with AsyncExitStack() as stack:
        stubs: dict[str, Any] = {}
        for address in dict.fromkeys(sources):
            channel = await stack.enter_async_context(open_channel(address, is_dedicated=True))
            stubs[address] = WeightServiceStub(channel)  # type: ignore[no-untyped-call]
        manifest = await _manifest(stubs, model, patience_seconds)
        return await _Fetch(manifest, stubs, store, on_progress, patience_seconds).run()


async def _manifest(stubs: Mapping[str, Any], model: str, patience_seconds: float) -> Manifest:
    """Return what the first one says that has the model; another one would take the place of that in the store."""
    name, _, revision = model.partition("@")
    give_up_at = time.monotonic() + patience_seconds
    while True:
        causes = {}
        for address, stub in stubs.items():
            try:
                answer = await stub.GetManifest(messages.GetManifestRequest(model=model))
            except grpc.aio.AioRpcError as error:
                causes[address] = error_from_rpc(error).message
                continue
            files = [FileDigest(file.name, file.byte_count, file.sha256) for file in answer.files]
            if answer.model != name or revision not in ("", "main", answer.revision):
                causes[address] = f"it gives {answer.model[:100]}@{answer.revision[:40]} for it"
                continue
            return make_manifest(answer.model, answer.revision, files)
        if time.monotonic() > give_up_at:
            raise _nobody_gives(f"model {model}", causes)
        await asyncio.sleep(_PAUSE_SECONDS)


class _Fetch:
    """One model on its way."""

    def __init__(
        self,
        manifest: Manifest,
        stubs: Mapping[str, Any],
        store: WeightStore,
        on_progress: OnProgress,
        patience_seconds: float,
    ) -> None:
        self._manifest, self._stubs = manifest, stubs
        self._store, self._on_progress = store, on_progress
        self._patience_seconds = patience_seconds
        self._streams = asyncio.Semaphore(_NUM_FILES)
        self._held: dict[str, int] = {}
        """Bytes of each file, by name, that are here."""

    async def run(self) -> Path:
        """Bring all files; return their folder."""
        await asyncio.to_thread(self._store.begin, self._manifest, {})
        for file in self._manifest.files:
            self._tell(file, self._store.held_bytes(file))
        try:
            async with asyncio.TaskGroup() as tasks:
                for file in self._manifest.files:
                    tasks.create_task(self._bring(file))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        return await asyncio.to_thread(self._store.finish, self._manifest)

    async def _bring(self, file: FileDigest) -> None:
        refused: dict[str, str] = {}
        """What sources have given that was not the file; they are not asked for it again."""
        causes: dict[str, str] = {}
        held_bytes, give_up_at = -1, 0.0
        async with self._streams:
            while not await self._has_come(file, refused, causes):
                if (held := self._store.held_bytes(file)) != held_bytes:
                    held_bytes, give_up_at = held, time.monotonic() + self._patience_seconds
                if time.monotonic() > give_up_at or refused.keys() == self._stubs.keys():
                    raise _nobody_gives(f"model {self._manifest.name}: {file.name}", causes | refused)
                await asyncio.sleep(_PAUSE_SECONDS)
        self._tell(file, file.num_bytes)

    async def _has_come(self, file: FileDigest, refused: dict[str, str], causes: dict[str, str]) -> bool:
        """Ask each source for what is missing of a file; return whether it is here."""
        with ExitStack() as stack:
            try:
                receiving = self._store.receive(file, waits=False)
                arriving = await in_thread(stack.enter_context, receiving)
            except UnavailableError as error:
                causes["this machine"] = error.message
                return False
            if arriving is None:
                return True
            givers = {"what was here"} if arriving.num_bytes else set()
            for address in [each for each in self._stubs if each not in refused]:
                begin = arriving.num_bytes
                try:
                    await self._take(address, arriving)
                except BatonError as error:
                    if causes.get(address) != error.message:
                        log.warning("weights_lost source=%s file=%s cause=%r", address, file.name, error.message)
                    causes[address] = error.message
                    givers |= {address} if arriving.num_bytes > begin else set()
                    continue
                givers |= {address} if arriving.num_bytes > begin else set()
                if await in_thread(arriving.finish):
                    return True
                log.warning("weights_refused sources=%s file=%s: another digest", ",".join(sorted(givers)), file.name)
                if givers == {address}:
                    refused[address] = "what it gave has another digest: its disk, memory or network changes bytes"
                givers = set()
        return False

    async def _take(self, address: str, arriving: ArrivingFile) -> None:
        """Append what one source gives; raise a BatonError if it is not all."""
        model, end = f"{self._manifest.name}@{self._manifest.revision}", arriving.wanted.num_bytes
        wanted = messages.FetchFileRequest(
            sha256=arriving.wanted.sha256, begin=arriving.num_bytes, end=end, model=model
        )
        call, waited, num_counted = self._stubs[address].FetchFile(wanted), 0.0, arriving.num_bytes
        try:
            while arriving.num_bytes < end:
                if arriving.num_bytes - num_counted >= _LEAST_BYTES:
                    waited, num_counted = 0.0, arriving.num_bytes
                begun = time.monotonic()
                async with asyncio.timeout(_SILENT_SECONDS - waited):
                    piece = await call.read()
                waited += time.monotonic() - begun
                if piece is grpc.aio.EOF:
                    raise StreamBrokenError(f"it ended {end - arriving.num_bytes} bytes early")
                if not 0 < len(piece.content) <= end - arriving.num_bytes:
                    raise StreamBrokenError(f"it sent {len(piece.content)} bytes")
                await in_thread(_append, arriving, piece)
                self._tell(arriving.wanted, arriving.num_bytes)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        except TimeoutError as error:
            raise UnavailableError(f"it has sent next to nothing for {_SILENT_SECONDS:.0f} s") from error
        finally:
            call.cancel()

    def _tell(self, file: FileDigest, num_bytes: int) -> None:
        self._held[file.name] = num_bytes
        name = HubName(self._manifest.name, self._manifest.revision)
        self._on_progress(FetchProgress(name, sum(self._held.values()), self._manifest.num_bytes))


def _append(arriving: ArrivingFile, piece: messages.FetchFileResponse) -> None:
    if crc32c(piece.content) != piece.content_crc32c:
        raise StreamBrokenError("a piece was changed on its way: another checksum")
    arriving.write(piece.content)


def _nobody_gives(what: str, causes: Mapping[str, str]) -> UnavailableError:
    told = "; ".join(f"{address}: {cause}" for address, cause in causes.items())
    return UnavailableError(f"{what}: no machine gives it: {told}")
