"""An OTLP receiver: takes the spans that the processes export."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class SpanReceiver(service.TraceServiceServicer):
    """Keeps every span that arrives."""

    def __init__(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(2))
        service.add_TraceServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._spans: list[Span] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.stop(None)

    def Export(  # noqa: N802
        self, request: messages.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> messages.ExportTraceServiceResponse:
        """Take a batch."""
        with self._changed:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    self._spans += scope.spans
            self._changed.notify_all()
        return messages.ExportTraceServiceResponse()

    def wait_for_trace(self, trace_id: bytes, names: Sequence[str], timeout_seconds: float) -> dict[str, Span]:
        """Return the named spans of a trace, by name, once all have arrived.

        Raises:
            AssertionError: If some have not by then.
        """

        def found() -> dict[str, Span]:
            return {span.name: span for span in self._spans if span.trace_id == trace_id and span.name in names}

        with self._changed:
            is_complete = self._changed.wait_for(lambda: len(found()) == len(names), timeout_seconds)
            assert is_complete, f"of {names} only {sorted(found())} arrived"
            return found()
