"""A call with many messages on a `LoopChannel`, in the manner of grpc.aio's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, TypeVar

import grpc

from baton.grpc_sockets.headers import DETAILS_KEY
from baton.grpc_sockets.loop_call import CANCELLED_HERE, LoopCall
from baton.grpc_sockets.loop_connection import LoopConnection
from baton.grpc_sockets.status import CallError, Status

T = TypeVar("T")

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class Connector(Protocol):
    """Knows the connection: `LoopChannel`."""

    async def connected(self) -> LoopConnection:
        """Return it, made if there is none."""


class LoopStream(Generic[T]):
    """Begins with the first `read` or `write`; one task may read while another writes.

    Args:
        channel: Makes the connection.
        headers: Block of the call.
        serialize: Makes bytes of a request.
        deserialize: Makes a response of bytes.
        request: The only one; None: any number, by `write`.
    """

    def __init__(
        self,
        channel: Connector,
        headers: bytes,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], T],
        request: bytes | None = None,
    ) -> None:
        self._channel = channel
        self._headers = headers
        self._serialize = serialize
        self._deserialize = deserialize
        self._request = request
        self._beginning = asyncio.Lock()
        self._call: LoopCall | None = None
        self._is_cancelled = False

    async def read(self) -> T | object:
        """Return the next response; `grpc.aio.EOF` after the last.

        Raises:
            AioRpcError: How the call has failed.
            CancelledError: If this side has cancelled it, as grpc.aio has it.
        """
        call = self._call or await self._begun()
        try:
            data = await call.receive()
        except CallError as error:
            raise raised(call, error) from error
        return grpc.aio.EOF if data is None else self._deserialize(data)

    async def write(self, request: Any) -> None:
        """Send a request; returns once it is on its way.

        Raises:
            AioRpcError: If the call has failed.
            CancelledError: If this side has cancelled it.
        """
        call = self._call or await self._begun()
        try:
            await call.send(self._serialize(request))
        except CallError as error:
            raise raised(call, error) from error

    def cancel(self) -> None:
        """End the call, if it runs."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()

    async def __aiter__(self) -> AsyncIterator[T]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response  # type: ignore[misc] # what is not EOF is a response

    async def _begun(self) -> LoopCall:
        async with self._beginning:
            if self._call is None:
                connection = await self._channel.connected()
                if self._is_cancelled:
                    raise asyncio.CancelledError("the call was cancelled")
                try:
                    self._call = connection.call(self._headers, self._request)
                except CallError as error:
                    raise rpc_error(error.status) from error
        await self._call.sent()
        return self._call


def raised(call: LoopCall, error: CallError) -> BaseException:
    """Return what grpc.aio would raise for a call that ended so."""
    if call.status is CANCELLED_HERE:
        return asyncio.CancelledError("the call was cancelled by this side")
    return rpc_error(error.status)


def rpc_error(status: Status) -> grpc.aio.AioRpcError:
    """Return the error by which grpc.aio tells of a status."""
    trailers = grpc.aio.Metadata(*([(DETAILS_KEY, status.details)] if status.details else []))
    return grpc.aio.AioRpcError(_CODES[int(status.code)], grpc.aio.Metadata(), trailers, status.message)
