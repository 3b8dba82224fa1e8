"""One attempt at a generation on one decode node: its call, and the watch over its silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc

from baton.errors import StreamBrokenError, UnavailableError
from baton.rpc.status import error_from_rpc
from baton.v1.decode_service_pb2 import DecodeServiceGenerateRequest, Finished, TokenChunk
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub


async def run_attempt(
    channel: grpc.aio.Channel,
    request: DecodeServiceGenerateRequest,
    *,
    first_token_timeout_seconds: float,
    token_timeout_seconds: float,
) -> AsyncGenerator[TokenChunk | Finished, None]:
    """Yield what a decode node generates, `Finished` last; closing the generator cancels the call.

    Raises:
        UnavailableError: If the node fails, falls silent for too long, or ends the stream without `Finished`.
        BatonError: What the node refused the request with.
    """
    stub = DecodeServiceStub(channel)  # type: ignore[no-untyped-call]
    call = stub.Generate(request)
    watch = _SilenceWatch(call, first_token_timeout_seconds)
    try:
        async for response in call:
            kind = response.WhichOneof("element")
            if kind == "tokens":
                watch.note_progress(token_timeout_seconds)
                yield response.tokens
            elif kind == "finished":
                watch.stop()
                yield response.finished
                return
        raise StreamBrokenError("the decode node ended the stream without saying how the generation ended")
    except grpc.aio.AioRpcError as error:
        if watch.has_fired:
            raise UnavailableError(watch.message, reason="TOKEN_TIMEOUT") from error
        raise error_from_rpc(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        is_client_gone = task is not None and task.cancelling() > 0
        if watch.has_fired and not is_client_gone:
            raise UnavailableError(watch.message, reason="TOKEN_TIMEOUT") from None
        raise
    finally:
        watch.stop()
        call.cancel()


class _SilenceWatch:
    """Cancels a call that makes no progress.

    One timer per call, moved only when it fires: a token costs one clock reading.
    """

    def __init__(self, call: grpc.aio.Call, timeout_seconds: float) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._timeout_seconds = timeout_seconds
        self._deadline = self._loop.time() + timeout_seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_at(self._deadline, self._on_timer)
        self.has_fired = False

    @property
    def message(self) -> str:
        return f"the decode node sent no token for {self._timeout_seconds:g} s"

    def note_progress(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._deadline = self._loop.time() + timeout_seconds

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
            return
        self._timer = None
        self.has_fired = True
        self._call.cancel()
