"""One generation as a call of its own, for decode nodes that do not know `Serve`.

The gateway's links to decode nodes: one channel and one `Serve` call each, shared by all generations there.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType

import grpc

from baton.errors import StreamBrokenError, UnavailableError
from baton.gateway.cluster.decode_call import TOKEN_TIMEOUT, Attempt, DecodeCall, ServeUnknownError, closed_error
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.status import error_from_rpc
from baton.v1.decode_service_pb2 import DecodeServiceGenerateRequest, Finished
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub

log = logging.getLogger(__name__)


async def generate_alone(channel: LoopChannel, request: DecodeServiceGenerateRequest, attempt: Attempt) -> None:
    """Tell an attempt what a node generates; cancelling this cancels the call."""
    call = DecodeServiceStub(channel).Generate(request)  # type: ignore[no-untyped-call]
    clock = asyncio.get_running_loop().time
    try:
        async for response in call:
            kind = response.WhichOneof("element")
            if kind == "tokens":
                chunk = response.tokens
                attempt.take_tokens(clock(), chunk.output_index, chunk.token_ids, chunk.logprobs)
            elif kind == "prompt":
                attempt.take_prompt(clock(), response.prompt)
            elif kind == "finished":
                attempt.finish(response.finished)
                return
            else:
                attempt.note_progress(clock())
        error = "the decode node ended the stream without saying how the generation ended"
        attempt.fail(StreamBrokenError(error))
    except grpc.aio.AioRpcError as rpc_error:
        attempt.fail(error_from_rpc(rpc_error))
    except asyncio.CancelledError:
        attempt.fail(closed_error())
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    except Exception as bug:  # the edge of the task: its attempt is told, and no other is touched
        log.exception("generate_call_failed")
        attempt.fail(bug)
    finally:
        call.cancel()


_MAX_LINKS = 256
_RETRY_SECONDS = 60.0
"""Time after which a node that did not know `Serve` is asked again: it may have been replaced."""

MakeAttempt = Callable[[], Attempt]
"""Makes what is told of a stream."""


class NodeLinks:
    """Keeps a link per address, inside `async with`.

    Invariant: at most 256 are kept beside those in use; of the others the one unused for longest is dropped first.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._links: OrderedDict[str, NodeLink] = OrderedDict()

    async def __aenter__(self) -> NodeLinks:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        links, self._links = self._links, OrderedDict()
        for link in links.values():
            await link.close()
        # Told of no error: a task group would wrap it in a group, and the caller expects it as it is.
        await self._tasks.__aexit__(None, None, None)

    async def follow(
        self, address: str, request: DecodeServiceGenerateRequest, make_attempt: MakeAttempt
    ) -> Finished | None:
        """Generate on the node at host:port, in the trace that is current; cancelling this frees it there.

        Returns:
            What the node reported at the end; None if the tokens taken ended it.

        Raises:
            BatonError: Why the attempt failed.
        """
        link = self._links.pop(address, None) or NodeLink(LoopChannel(address), self._tasks)
        self._links[address] = link
        if len(self._links) > _MAX_LINKS:
            self._drop_unused(beside=link)
        return await link.follow(request, make_attempt)

    def _drop_unused(self, *, beside: NodeLink) -> None:
        for address, link in self._links.items():
            if link is not beside and not link.is_used:
                del self._links[address]
                self._tasks.create_task(link.close())
                return


class NodeLink:
    """One node: its channel, and the call that carries its streams, made anew when it has ended."""

    def __init__(self, channel: LoopChannel, tasks: asyncio.TaskGroup) -> None:
        self._channel = channel
        self._tasks = tasks
        self._clock = asyncio.get_running_loop().time
        self._call: DecodeCall | None = None
        self._running: asyncio.Task[None] | None = None
        self._num_streams = 0
        self._alone_until_seconds = 0.0

    @property
    def is_used(self) -> bool:
        """Return whether it carries a stream."""
        return self._num_streams > 0

    async def follow(self, request: DecodeServiceGenerateRequest, make_attempt: MakeAttempt) -> Finished | None:
        """Generate; see `NodeLinks.follow`."""
        self._num_streams += 1
        try:
            if self._clock() >= self._alone_until_seconds:
                try:
                    return await self._follow_shared(request, make_attempt())
                except ServeUnknownError:
                    log.warning("serve_unknown request=%s: each stream gets a call of its own", request.request_id)
                    self._alone_until_seconds = self._clock() + _RETRY_SECONDS
            return await self._follow_alone(request, make_attempt())
        finally:
            self._num_streams -= 1

    async def close(self) -> None:
        """End what runs and close the channel."""
        if self._running is not None:
            self._running.cancel()
        await self._channel.close()

    async def _follow_shared(self, request: DecodeServiceGenerateRequest, attempt: Attempt) -> Finished | None:
        if self._call is None or not self._call.is_open:
            self._call = DecodeCall(self._channel)
            # A context of its own: the call outlives the request, and must not speak in its trace.
            self._running = self._tasks.create_task(self._call.run(), context=contextvars.Context())
        call = self._call
        stream_id = call.open(request, attempt)
        try:
            return await attempt.ended
        except UnavailableError as error:
            if error.reason == TOKEN_TIMEOUT:
                call.retire()
            raise
        finally:
            call.cancel(stream_id)
            attempt.close()

    async def _follow_alone(self, request: DecodeServiceGenerateRequest, attempt: Attempt) -> Finished | None:
        task = self._tasks.create_task(generate_alone(self._channel, request, attempt))
        try:
            return await attempt.ended
        finally:
            task.cancel()
            attempt.close()
