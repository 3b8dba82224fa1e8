"""An OTLP receiver: takes the spans that the processes export."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
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
        self.resources: dict[str, Mapping[str, str]] = {}
        """Attributes of each process that has sent spans, by the names of services."""
        self.schema_urls: set[str] = set()
        """Of all spans and resources."""
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
                attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
                self.resources[attributes["service.name"]] = attributes
                self.schema_urls.add(resource.schema_url)
                for scope in resource.scope_spans:
                    self._spans += scope.spans
                    self.schema_urls.add(scope.schema_url)
            self._changed.notify_all()
        return messages.ExportTraceServiceResponse()

    def wait_for_trace(self, trace_id: bytes, names: Sequence[str], timeout_seconds: float) -> dict[str, Span]:
        """Return the named spans of a trace, by name, once all have arrived; of a call those of its server.

        Raises:
            AssertionError: If some have not by then.
        """

        def found(spans: Sequence[Span]) -> dict[str, Span]:
            calls = {span.name for span in spans if span.kind == Span.SPAN_KIND_SERVER}
            wanted = (span for span in spans if span.name in names)
            return {each.name: each for each in wanted if each.kind == Span.SPAN_KIND_SERVER or each.name not in calls}

        return found(self.wait_for_spans(trace_id, lambda spans: found(spans).keys() == set(names), timeout_seconds))

    def wait_for_spans(
        self, trace_id: bytes, is_complete: Callable[[Sequence[Span]], bool], timeout_seconds: float
    ) -> Sequence[Span]:
        """Return the spans of a trace once they are complete.

        Raises:
            AssertionError: If they are not by then.
        """

        def found() -> Sequence[Span]:
            return [span for span in self._spans if span.trace_id == trace_id]

        with self._changed:
            if not self._changed.wait_for(lambda: is_complete(found()), timeout_seconds):
                raise AssertionError(f"only these arrived: {sorted(span.name for span in found())}")
            return found()
