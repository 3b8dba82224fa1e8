"""Where a decode node takes a prompt's KV from: a prefill node, by the fast path or by the gRPC library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Protocol

import grpc
from opentelemetry import trace

from baton.decode.reception import Reception
from baton.errors import StreamBrokenError, UnavailableError
from baton.rpc.decoding import Undecodable
from baton.rpc.fast_channel import FastChannel, FastPathError, FastStream, Message
from baton.rpc.kv_service import KvStub
from baton.rpc.status import error_from_rpc
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1 import prefill_service_pb2

log = logging.getLogger(__name__)

TransportChoice = Literal["auto", "grpc", "fast"]
"""What may carry KV streams: auto is the fast path where it is offered and works, else the gRPC library."""


class KvSource(Protocol):
    """One prefill node."""

    def prefill(
        self, request: prefill_service_pb2.PrefillRequest, reception: Reception
    ) -> AbstractAsyncContextManager[AsyncIterable[Message]]:
        """Return the messages of a KV stream; leaving the context ends the call.

        Args:
            request: The prompt.
            reception: Takes note of what carries the stream.

        Raises:
            BatonError: If the call fails, in the context too.
        """


class PrefillSource:
    """A prefill node that the router has named.

    Args:
        stub: Calls it by the gRPC library.
        fast: Its fast path; None: it offers none, or this node must not use it.
        choice: What may be used.
        metrics: Where to count.
    """

    def __init__(self, stub: KvStub, fast: FastChannel | None, choice: TransportChoice, metrics: Metrics) -> None:
        self._stub = stub
        self._fast = fast
        self._choice = choice
        self._metrics = metrics

    @asynccontextmanager
    async def prefill(
        self, request: prefill_service_pb2.PrefillRequest, reception: Reception
    ) -> AsyncIterator[AsyncIterable[Message]]:
        """See `KvSource`. The gRPC library takes over only from a fast path on which the stream has not begun."""
        stream = await self._open_fast(request, reception)
        trace.get_current_span().set_attribute(names.KV_TRANSPORT, reception.transport)
        if stream is not None:
            try:
                yield stream
            finally:
                stream.close()
        else:
            async with grpc_call(self._stub.Prefill(request)) as messages:
                yield messages

    async def _open_fast(self, request: prefill_service_pb2.PrefillRequest, reception: Reception) -> FastStream | None:
        """Return the stream on the fast path; None: the gRPC library is to carry it."""
        if self._choice == "grpc":
            return None
        try:
            if self._fast is None:
                raise FastPathError("the prefill node offers no fast path", reason="NOT_OFFERED")
            stream = await self._fast.prefill(request)
        except FastPathError as error:
            if self._choice == "fast":
                raise
            log.debug("fast_path_unused request=%s reason=%s cause=%s", request.request_id, error.reason, error)
            reception.transport_reason = error.reason
            self._metrics.add_fast_path_fallback(error.reason)
            return None
        reception.transport = "fast"
        return stream


@asynccontextmanager
async def grpc_call(call: Any) -> AsyncIterator[AsyncIterable[Any]]:
    """Return the messages of a call of a `KvStub` or `BlockStub`; leaving the context ends it.

    Raises:
        BatonError: If the call fails, in the context too.
    """
    try:
        yield _readable(call)
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # grpc.aio ends calls of a closed channel like cancelled ones, though nobody cancelled this task.
        raise UnavailableError("the connection to the node was closed", reason="CHANNEL_CLOSED") from None
    finally:
        call.cancel()


async def _readable(responses: AsyncIterable[Message | Undecodable]) -> AsyncIterator[Message]:
    async for response in responses:
        if isinstance(response, Undecodable):
            raise StreamBrokenError("a message of the KV stream cannot be read")
        yield response
