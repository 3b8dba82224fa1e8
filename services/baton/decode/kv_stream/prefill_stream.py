"""KV streams of prefill nodes: the call, over the best transport that both ends have, and the reading."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

from opentelemetry import trace

from baton.decode.kv_stream import reader
from baton.decode.kv_stream.receive_budget import ReceiveBudget
from baton.decode.measurement import LinkMeter, Reception
from baton.engine.engine import Engine
from baton.errors import StreamBrokenError, UnavailableError
from baton.internal.v1 import kv_pb2, prefill_service_pb2
from baton.kv.kv_format import KvLayout
from baton.kv.stream import KvProgress, tokens_crc32c
from baton.kv_transport.fast_channel import FastChannel, FastPathError, FastStream, Message
from baton.kv_transport.frame_codec import ReceivedFrame, request_crc32c, serialize_request, with_payload
from baton.kv_transport.kv_services import KvStub
from baton.node.requests import token_from_proto
from baton.shm.lender import Lender, Loan
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.telemetry.tracing import current_metadata
from baton.wire.kv import wire_from_proto
from baton.wire.quantities import seconds_from_duration

log = logging.getLogger(__name__)

TransportChoice = Literal["auto", "grpc", "fast", "shared"]
"""What may carry KV streams: shared is shared memory, with headers by the fast path or else the gRPC library; auto is
the first of shared memory, fast path and gRPC library that works."""


DOUBT_TIMES = 2
"""How many times as long as the router expected a prompt is waited for: its node may have others to compute first."""


class PrefillReader(reader.KvStreamReader):
    """Reads what prefill nodes send of one prompt: KV, and the first token, which is delivered once."""

    def __init__(
        self,
        engine: Engine,
        engine_id: str,
        progress: KvProgress,
        layout: KvLayout,
        budget: ReceiveBudget,
        timeouts: reader.Timeouts,
    ) -> None:
        super().__init__(engine, engine_id, progress, layout, budget)
        self.has_first_token = False
        """Whether the first token has been delivered."""
        self._timeouts = timeouts
        self._request = prefill_service_pb2.PrefillRequest()
        self._has_streams_token = False

    async def run(
        self,
        source: PrefillSource,
        request: prefill_service_pb2.PrefillRequest,
        transfer_answer: bytes,
        expected_seconds: float,
    ) -> None:
        """Take the prefill node's stream up to the summary; raise BatonError if it fails, or breaks the rules.

        `expected_seconds`: until the first token, as the router expected it; 0: it did not say.
        """
        self._request, self._has_streams_token = request, False
        self.reception.clock.called = time.perf_counter()
        layout = replace(self._layout, wire=wire_from_proto(request, self._layout))
        patient_until = asyncio.get_running_loop().time() + DOUBT_TIMES * expected_seconds
        limit = self._timeouts.first_frame_seconds
        if request.stream_number:  # nothing precedes the layout but the call, and others may be asked
            limit = min(limit, self._timeouts.frame_seconds)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(limit):
                    messages = await stack.enter_async_context(source.prefill(request, self.reception))
            except TimeoutError:
                raise reader.SilentStreamError(f"the stream was silent for {limit:g} seconds") from None
            crc = request_crc32c(serialize_request(request))  # with the offer of memory that the source put into it
            terms = reader.StreamTerms(layout, crc, bool(request.wire_dtype), transfer_answer)
            heard_seconds = partial(self._budget.heard_seconds, self.reception.clock.called)
            await self._read(reader.timed(messages, self._timeouts, patient_until, heard_seconds), terms)

    def commit(self) -> None:
        """Tell the engine that the KV is complete: it may decode."""
        self._engine.commit_kv(self.engine_id)

    def _promise(self, message: prefill_service_pb2.PrefillResponse) -> reader.StreamPromise:
        return reader.StreamPromise(
            self.progress, message.request_crc32c if message.HasField("request_crc32c") else None
        )

    def _take_element(self, element: str | None, message: prefill_service_pb2.PrefillResponse) -> None:
        if element != "first_token" or self._has_streams_token:
            raise StreamBrokenError(f"{element} came out of order")
        self._has_streams_token = True
        trace.get_current_span().add_event(names.EVENT_FIRST_TOKEN)
        first, request = message.first_token, self._request
        token = token_from_proto(first.token, has_logprob=request.sampling.HasField("top_logprob_count"))
        vocabulary_size = self._engine.runner.info.vocabulary_size
        if not 0 <= token.token_id < vocabulary_size:
            raise StreamBrokenError(f"first token {token.token_id} is not in 0 to {vocabulary_size - 1}")
        if tokens_crc32c(request.token_ids, token.token_id) != first.crc32c:
            raise StreamBrokenError("prompt or first token have a wrong checksum: they were changed on the way")
        if first.HasField("compute_duration"):  # the summary, which says the same, may never be waited for
            self._take_times(first)
        if not self.has_first_token:  # an earlier stream's is the client's already
            self.has_first_token = True
            self._engine.take_first_token(self.engine_id, token)

    def _take_summary(self, summary: kv_pb2.KvSummary) -> None:
        if not self._has_streams_token:
            raise StreamBrokenError("summary came out of order")
        self._take_times(summary)
        reception = self.reception
        reception.prefill_peak_memory_bytes = summary.peak_memory_byte_count
        reception.prefill_energy_joules = summary.energy_joules if summary.HasField("energy_joules") else None
        reception.clock.summary_arrived(reception.queue_seconds + reception.compute_seconds)
        self.commit()

    def _take_times(self, message: prefill_service_pb2.FirstToken | kv_pb2.KvSummary) -> None:
        self.reception.prefill_cached_tokens = message.cached_token_count
        self.reception.prefill_shared_tokens = message.shared_token_count
        self.reception.queue_seconds = seconds_from_duration(message.queue_duration)
        self.reception.compute_seconds = seconds_from_duration(message.compute_duration)


class PrefillSource:
    """A prefill node that the router named; `fast`: None without fast path; `lender`: None if no memory is lent."""

    def __init__(
        self,
        stub: KvStub,
        fast: FastChannel | None,
        lender: Lender | None,
        choice: TransportChoice,
        metrics: Metrics,
        link: LinkMeter,
    ) -> None:
        self._link, self._stub = link, stub
        self._fast, self._lender = fast, lender
        self._choice, self._metrics = choice, metrics

    @asynccontextmanager
    async def prefill(
        self, request: prefill_service_pb2.PrefillRequest, reception: Reception
    ) -> AsyncIterator[AsyncIterable[Message]]:
        """Return the messages of a KV stream until the context is left; raise BatonError if the call fails.

        The gRPC library takes over only from a fast path on which the stream has not begun. The request gets the offer
        of this node's memory, or none.
        """
        reception.clock.begin(self._link)
        with self._offered(request) as loan:
            stream = await self._open_fast(request, loan, reception)
            if stream is not None:
                try:
                    yield self._messages(stream, loan, reception)
                finally:
                    stream.close()
            else:
                async with reader.grpc_call(self._stub.Prefill(request, metadata=current_metadata())) as messages:
                    yield self._messages(messages, loan, reception)
            if loan is not None and reception.transport == "shared":
                loan.finish()  # the stream has come to its summary; another that took the offer may still write

    @contextmanager
    def _offered(self, request: prefill_service_pb2.PrefillRequest) -> Iterator[Loan | None]:
        """Put an offer of memory into a request; the offer is withdrawn at the end."""
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
        """Yield messages, frames with their payload; note which transport carries the payload."""
        async for message in messages:
            if isinstance(message, ReceivedFrame):
                yield with_payload(message, loan)
                del message  # its sender may need the memory for the next one
                continue
            if message.WhichOneof("element") == "layout":
                self._note_transport(message.uses_shared_memory, loan, reception)
            yield message

    def _note_transport(self, is_shared: bool, loan: Loan | None, reception: Reception) -> None:
        if is_shared:
            reception.transport = "shared"
        is_full = loan is not None and loan.is_refused
        if is_full:
            reception.transport_reason = reception.transport_reason or "SHARED_MEMORY_FULL"
        trace.get_current_span().set_attribute(names.KV_TRANSPORT, reception.transport)
        if not is_shared and self._choice == "shared":
            if is_full:
                raise UnavailableError("all memory that is shared is lent to streams", reason="SHARED_MEMORY_FULL")
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
            self._metrics.add(names.FAST_PATH_FALLBACKS, 1, {names.REASON: error.reason})
            return None
        reception.transport = "fast"  # unless the first message says that memory is shared
        return stream
