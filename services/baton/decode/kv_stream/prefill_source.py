"""Where a decode node takes a prompt's KV from: a prefill node, by the fast path or by the gRPC library."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, Protocol

import grpc
from opentelemetry import trace

from baton.decode.kv_stream.clock import Reception
from baton.errors import StreamBrokenError, UnavailableError
from baton.kv_transport.fast_channel import FastChannel, FastPathError, FastStream, Message
from baton.kv_transport.frame_codec import ReceivedFrame, located
from baton.kv_transport.kv_service import KvStub
from baton.rpc.error_interceptor import Undecodable
from baton.rpc.status import error_from_rpc
from baton.shm.lender import Lender, Loan
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1 import prefill_service_pb2

log = logging.getLogger(__name__)

TransportChoice = Literal["auto", "grpc", "fast", "shared"]
"""What may carry KV streams: shared is shared memory, with headers by the fast path or else the gRPC library; auto is
the first of shared memory, fast path and gRPC library that works."""


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
        lender: Memory of this node; None: none is lent.
        choice: What may be used.
        metrics: Where to count.
    """

    def __init__(
        self,
        stub: KvStub,
        fast: FastChannel | None,
        lender: Lender | None,
        choice: TransportChoice,
        metrics: Metrics,
    ) -> None:
        self._stub = stub
        self._fast = fast
        self._lender = lender
        self._choice = choice
        self._metrics = metrics

    @asynccontextmanager
    async def prefill(
        self, request: prefill_service_pb2.PrefillRequest, reception: Reception
    ) -> AsyncIterator[AsyncIterable[Message]]:
        """See `KvSource`. The gRPC library takes over only from a fast path on which the stream has not begun.

        The request gets the offer of this node's memory, or none.
        """
        with self._offered(request) as loan:
            stream = await self._open_fast(request, loan, reception)
            if stream is not None:
                try:
                    yield self._messages(stream, loan, reception)
                finally:
                    stream.close()
            else:
                async with grpc_call(self._stub.Prefill(request)) as messages:
                    yield self._messages(messages, loan, reception)
            if loan is not None and reception.transport == "shared":
                loan.finish()  # the stream has come to its summary; another that took the offer may still write

    @contextmanager
    def _offered(self, request: prefill_service_pb2.PrefillRequest) -> Iterator[Loan | None]:
        """Put an offer into a request; it is withdrawn at the end."""
        request.ClearField("shared_memory")
        if self._lender is None or not self._lender.address:
            yield None
            return
        loan = self._lender.lend()
        request.shared_memory.address, request.shared_memory.token = loan.address, loan.token
        try:
            yield loan
        finally:
            loan.close()

    async def _messages(
        self, messages: AsyncIterable[Message], loan: Loan | None, reception: Reception
    ) -> AsyncIterator[Message]:
        """Yield messages, frames with their payload; take note of what carries it."""
        async for message in messages:
            if isinstance(message, ReceivedFrame):
                yield located(message, loan)
                del message  # its sender may need the memory for the next one
                continue
            if message.WhichOneof("element") == "layout":
                self._note_transport(message.uses_shared_memory, loan, reception)
            yield message

    def _note_transport(self, is_shared: bool, loan: Loan | None, reception: Reception) -> None:
        if is_shared:
            reception.transport = "shared"
        elif loan is not None and loan.is_refused:
            reception.transport_reason = reception.transport_reason or "SHARED_MEMORY_FULL"
        trace.get_current_span().set_attribute(names.KV_TRANSPORT, reception.transport)
        if not is_shared and self._choice == "shared":
            raise UnavailableError("the prefill node shares no memory with this one", reason="NOT_SHARED")

    async def _open_fast(
        self, request: prefill_service_pb2.PrefillRequest, loan: Loan | None, reception: Reception
    ) -> FastStream | None:
        """Return the stream on the fast path; None: the gRPC library is to carry it."""
        reception.transport = "grpc"
        if self._choice == "grpc":
            return None
        try:
            if self._fast is None:
                raise FastPathError("the prefill node offers no fast path", reason="NOT_OFFERED")
            stream = await self._fast.prefill(request, loan)
        except FastPathError as error:
            if self._choice == "fast":
                raise
            log.debug("fast_path_unused request=%s reason=%s cause=%s", request.request_id, error.reason, error)
            reception.transport_reason = error.reason
            self._metrics.add_fast_path_fallback(error.reason)
            return None
        reception.transport = "fast"  # unless the first message says that memory is shared
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
        if _is_cancelled():
            raise
        # grpc.aio ends calls of a closed channel like cancelled ones, though nobody cancelled this task.
        raise UnavailableError("the connection to the node was closed", reason="CHANNEL_CLOSED") from None
    finally:
        call.cancel()


def _is_cancelled() -> bool:
    """Return whether somebody has cancelled this task; its error must not know the task, which keeps it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _readable(responses: AsyncIterable[Message | Undecodable]) -> AsyncIterator[Message]:
    async for response in responses:
        if isinstance(response, Undecodable):
            raise StreamBrokenError("a message of the KV stream cannot be read")
        yield response
