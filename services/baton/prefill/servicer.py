"""baton.v1.PrefillService over a prefiller.

PrefillService.Prefill on the fast path: a thread per stream takes frames from the engine to the kernel.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial

import grpc

from baton.engine.events import Failed, TokenReady
from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.server_connection import ServerCall
from baton.kv_transport.frame_codec import EncodedFrame
from baton.kv_transport.kv_service import ReceivedRequest
from baton.node.block_servicer import probe_sizes
from baton.prefill.kv_stream import Message, StreamMessages
from baton.prefill.outbox import Item
from baton.prefill.prefiller import Prefiller, StreamSink
from baton.v1 import prefill_service_pb2 as messages
from baton.v1 import prefill_service_pb2_grpc as service


class PrefillServicer(service.PrefillServiceServicer):
    """Serves prefills and link probes."""

    def __init__(self, prefiller: Prefiller) -> None:
        self._prefiller = prefiller

    async def Prefill(  # noqa: N802
        self,
        request: ReceivedRequest,
        context: grpc.aio.ServicerContext[ReceivedRequest, Message],  # noqa: ARG002
    ) -> AsyncIterator[Message]:
        """Stream a prompt's KV; frames as `baton.kv_transport.frame_codec` encodes them."""
        async for response in self._prefiller.run(request):
            yield response

    async def ProbeLink(  # noqa: N802
        self,
        request: messages.ProbeLinkRequest,
        context: grpc.aio.ServicerContext[messages.ProbeLinkRequest, messages.ProbeLinkResponse],  # noqa: ARG002
    ) -> AsyncIterator[messages.ProbeLinkResponse]:
        """Send bytes."""
        for num_bytes in probe_sizes(request.byte_count, request.message_byte_count):
            yield messages.ProbeLinkResponse(payload=bytes(num_bytes))


class ThreadOutbox:
    """What waits to be sent, in the order of `Outbox`; filled by any thread, emptied by one that waits.

    It holds at most the KV of its prompt; all outboxes of a node are bounded by `OutboxBudget`, which counts no frame
    of a stream that has failed or ended: none is held then.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._has_failed = False

    def put(self, item: Item) -> None:
        """Take a frame or an event; the first token overtakes the frames that wait, a failure drops all."""
        with self._changed:
            if self._is_closed or self._has_failed:
                return
            if isinstance(item, Failed):
                self._has_failed = True
                self._items.clear()
            if isinstance(item, TokenReady):
                self._items.appendleft(item)
            else:
                self._items.append(item)
            self._changed.notify()

    def close(self) -> None:
        """Wake whoever waits, and drop what waits and what still comes: nobody wants it."""
        with self._changed:
            self._is_closed = True
            self._items.clear()
            self._changed.notify()

    def get(self, timeout_seconds: float | None) -> Item:
        """Return the next item, waiting for it.

        Raises:
            StreamEndedError: If the outbox was closed.
            TimeoutError: If nothing comes in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._items or self._is_closed, timeout_seconds):
                raise TimeoutError("the deadline has passed")
            if self._is_closed:
                raise StreamEndedError("the caller has gone")
            return self._items.popleft()


class FastPrefill:
    """Serves prefills in threads of their own."""

    def __init__(self, prefiller: Prefiller) -> None:
        self._prefiller = prefiller

    def serve(self, request: ReceivedRequest, call: ServerCall) -> None:
        """Send the messages of a prompt's KV stream.

        Raises:
            BatonError: If the request is refused or fails.
        """
        with closing(ThreadOutbox()) as outbox:  # an error knows this function, and may be kept
            self._serve(request, call, outbox)

    def _serve(self, request: ReceivedRequest, call: ServerCall, outbox: ThreadOutbox) -> None:
        call.watch(outbox.close)
        constraint = self._prefiller.compile(request.message)
        sink = StreamSink(outbox.put, outbox.put, lambda error: outbox.put(Failed(error)))
        with self._prefiller.begin(request, constraint, sink) as messages:
            call.watch(partial(_end, outbox, messages))
            call.send(*_parts(messages.layout()))
            while not messages.is_complete:
                for message in messages.of(outbox.get(call.remaining_seconds()), call.remaining_seconds()):
                    call.send(*_parts(message))


def _end(outbox: ThreadOutbox, messages: StreamMessages) -> None:
    outbox.close()
    messages.close()


def _parts(message: Message) -> tuple[bytes | memoryview, ...]:
    return message.parts if isinstance(message, EncodedFrame) else (message.SerializeToString(),)
