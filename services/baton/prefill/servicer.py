"""PrefillService over a prefiller: by the gRPC library, and on the fast path in a thread per stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial

import grpc

from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1 import prefill_service_pb2_grpc as service
from baton.kv.stream import KvFrame
from baton.kv_transport.frame_codec import response_parts
from baton.kv_transport.kv_services import PREFILL_SERVICE_NAME, FastServer, ReceivedRequest, add_prefill_service
from baton.node.memory import LONE_PROMPT
from baton.node.node import WorkerNode
from baton.node.service import NodeService
from baton.prefill.kv_stream import Message, StreamMessages
from baton.prefill.outbox import LoopOutbox, ThreadOutbox
from baton.prefill.prefiller import Prefiller
from baton.prefill.settings import PrefillSettings


class PrefillServicer(service.PrefillServiceServicer):
    """Serves prefills."""

    def __init__(self, prefiller: Prefiller) -> None:
        self._prefiller = prefiller

    async def Prefill(  # noqa: N802
        self, request: ReceivedRequest, _context: grpc.aio.ServicerContext[ReceivedRequest, Message]
    ) -> AsyncIterator[Message]:
        """Stream a prompt's KV: layout, frames and first token, summary; frames as `frame_codec` encodes them."""
        sampling = await self._prefiller.compile(request.message)
        with (
            closing(LoopOutbox(asyncio.get_running_loop())) as outbox,
            self._prefiller.begin(request, sampling, outbox.put) as stream,
        ):
            has_offer = request.message.HasField("shared_memory")
            yield await asyncio.to_thread(stream.layout) if has_offer else stream.layout()
            while not stream.is_complete:
                item = await outbox.get()
                if stream.shares_memory and isinstance(item, KvFrame):
                    yield await asyncio.to_thread(next, stream.of(item))
                    continue
                for message in stream.of(item):
                    yield message


def serve_fast(prefiller: Prefiller, request: ReceivedRequest, call: ServerCall) -> None:
    """Send the messages of a prompt's KV stream from a thread; raise BatonError if the request is refused or fails."""
    with closing(ThreadOutbox()) as outbox:  # an error knows this function, and may be kept
        _serve_fast(prefiller, request, call, outbox)


def _serve_fast(prefiller: Prefiller, request: ReceivedRequest, call: ServerCall, outbox: ThreadOutbox) -> None:
    call.watch(outbox.close)
    sampling = prefiller.compile_blocking(request.message)
    with prefiller.begin(request, sampling, outbox.put) as stream:
        call.watch(partial(_end, outbox, stream))
        call.send(*response_parts(stream.layout()))
        while not stream.is_complete:
            for message in stream.of(outbox.get(call.remaining_seconds()), call.remaining_seconds()):
                call.send(*response_parts(message))


def _end(outbox: ThreadOutbox, stream: StreamMessages) -> None:
    outbox.close()
    stream.close()


def prefill_service(node: WorkerNode, settings: PrefillSettings) -> NodeService:
    """Return the service on a node, with its fast path."""
    prefiller = Prefiller(node, node.budgets["max_outbox_bytes"], node.budgets[LONE_PROMPT])
    serve = partial(serve_fast, prefiller)
    fast = FastServer(settings.host, settings.fast_port, serve, advertised=settings.advertised_fast)
    return NodeService(
        PREFILL_SERVICE_NAME,
        partial(add_prefill_service, PrefillServicer(prefiller)),
        fast=fast,
        run=fast.open_outside,
        on_hung=prefiller.streams.end_all,
    )
