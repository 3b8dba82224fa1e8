"""Spans of requests to a gateway, as backends that know only OpenTelemetry's conventions read them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode

from baton.errors import UnavailableError
from baton.gateway.server import RunningGateway
from baton.v1 import generation_pb2 as generation
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.rest import ask
from telemetry.conventions import FORMER_RPC, HTTP_SERVER, OPERATION, RPC, strangers
from telemetry.span_exporting import exporting_to

CHAT_PATH = "/v1/chat/completions"
GRPC_METHOD = "baton.v1.GenerationService/Generate"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0.5}


class Spans(SpanExporter):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []
        self._changed = threading.Condition()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep spans."""
        with self._changed:
            self._spans += spans
            self._changed.notify_all()
        return SpanExportResult.SUCCESS

    def by_name(self, root: str) -> Mapping[str, ReadableSpan]:
        """Return the spans of the first trace, once its root has ended; of calls those of their clients."""

        def has_root() -> bool:
            return any(span.name == root and span.parent is None for span in self._spans)

        with self._changed:
            assert self._changed.wait_for(has_root, 20), [span.name for span in self._spans]
            return {span.name: span for span in self._spans if span.kind is not SpanKind.SERVER or span.parent is None}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """Return where the spans of this process go."""
    spans = Spans()
    with exporting_to(spans, monkeypatch):
        yield spans


@pytest.fixture
def traced(spans: Spans, loop: Loop, cluster: FakeCluster) -> Iterator[RunningGateway]:
    """Run a gateway that traces."""
    with loop.running(cluster) as running:
        yield running


def _attributes(span: ReadableSpan) -> Mapping[str, Any]:
    attributes = dict(span.attributes or {})
    assert strangers(attributes) == set()
    return attributes


def test_a_chat_request_has_a_span_of_its_server_and_one_of_its_operation(traced: RunningGateway, spans: Spans) -> None:
    """The one is HTTP's; the other tells model, parameters, tokens, ends and the time to the first token."""
    further = {"n": 2, "stop": ["zzz"], "seed": 5, "response_format": {"type": "json_object"}, "top_p": 0.9}
    headers = {"host": "llm.local:8443", "user-agent": "tester/1", "x-request-id": "r-1"}
    reply = ask(traced, f"{CHAT_PATH}?api-version=1", CHAT | further, headers=headers)

    found = spans.by_name(f"POST {CHAT_PATH}")
    server, operation = found[f"POST {CHAT_PATH}"], found[f"chat {MODEL}"]
    http, told = _attributes(server), _attributes(operation)
    assert (server.kind, operation.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert http.keys() >= HTTP_SERVER
    assert (http["http.request.method"], http["url.path"], http["url.scheme"]) == ("POST", CHAT_PATH, "http")
    assert (http["http.route"], http["url.query"]) == (CHAT_PATH, "api-version=1")
    assert (http["http.response.status_code"], http["user_agent.original"]) == (200, "tester/1")
    assert (http["network.protocol.version"], http["baton.request.id"]) == ("1.1", "r-1")
    assert told.keys() >= OPERATION
    for each in (http, told):
        assert (each["server.address"], each["server.port"]) == ("llm.local", 8443)
        assert each["gen_ai.operation.name"] == "chat"
    assert (told["gen_ai.provider.name"], told["gen_ai.request.model"]) == ("baton", MODEL)
    assert (told["gen_ai.request.temperature"], told["gen_ai.request.top_p"]) == (0.5, 0.9)
    assert (told["gen_ai.request.seed"], told["gen_ai.request.max_tokens"]) == (5, 4)
    assert (told["gen_ai.request.stop_sequences"], told["gen_ai.request.choice.count"]) == (("zzz",), 2)
    assert (told["gen_ai.request.stream"], told["gen_ai.output.type"]) == (False, "json")
    assert (told["gen_ai.response.id"], told["gen_ai.response.model"]) == (reply.body["id"], MODEL)
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert told["gen_ai.usage.input_tokens"] == reply.body["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == reply.body["usage"]["completion_tokens"] == 8
    assert told["gen_ai.usage.cache_read.input_tokens"] == 4
    assert 0 < told["gen_ai.response.time_to_first_chunk"] < 20
    assert {span.status.status_code for span in found.values()} == {StatusCode.UNSET}


def test_calls_of_router_and_node_have_spans_of_their_clients(
    traced: RunningGateway, spans: Spans, cluster: FakeCluster
) -> None:
    """Below the operation, with the address that is called and how the call ended."""
    ask(traced, CHAT_PATH, CHAT)

    found = spans.by_name(f"POST {CHAT_PATH}")
    places = {
        "baton.internal.v1.RouterService/Place": cluster.router_port,
        "baton.internal.v1.DecodeService/Serve": int(cluster.addresses["decode-0"].partition(":")[2]),
    }
    for method, port in places.items():
        call = found[method]
        attributes = _attributes(call)
        assert call.kind is SpanKind.CLIENT
        assert call.parent is not None
        assert call.parent.span_id == found[f"chat {MODEL}"].context.span_id
        assert attributes.keys() >= RPC | FORMER_RPC
        assert (attributes["rpc.system.name"], attributes["rpc.method"]) == ("grpc", method)
        assert (attributes["server.address"], attributes["server.port"]) == ("127.0.0.1", port)
        assert attributes["rpc.response.status_code"] == "OK"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"model": "nope"}, 404, "model_not_found"),
        ({"temperature": -1}, 400, "invalid_value"),
        ({"messages": "x"}, 400, "invalid_type"),
    ],
)
def test_what_the_client_does_wrong_is_no_error_of_the_server(
    traced: RunningGateway, spans: Spans, change: dict[str, object], status: int, code: str
) -> None:
    """Spans say what was answered, and none has a status or a stack trace of Python."""
    assert ask(traced, CHAT_PATH, CHAT | change).error[0] == status

    found = spans.by_name(f"POST {CHAT_PATH}")
    attributes = _attributes(found[f"POST {CHAT_PATH}"])
    assert (attributes["http.response.status_code"], attributes["baton.error.code"]) == (status, code)
    for span in found.values():
        assert span.status.status_code is StatusCode.UNSET
        assert span.events == ()
        assert "error.type" not in _attributes(span)


def test_what_fails_here_is_an_error(traced: RunningGateway, spans: Spans, cluster: FakeCluster) -> None:
    """With its kind, and still without a stack trace."""
    cluster.router.refusal = UnavailableError("no node can take it", reason="NO_NODE")
    assert ask(traced, CHAT_PATH, CHAT).status == 503

    found = spans.by_name(f"POST {CHAT_PATH}")
    kinds = {name: _attributes(span)["error.type"] for name, span in found.items()}
    place = "baton.internal.v1.RouterService/Place"
    assert kinds == {f"POST {CHAT_PATH}": "no_node", f"chat {MODEL}": "no_node", place: "UNAVAILABLE"}
    assert {span.status.status_code for span in found.values()} == {StatusCode.ERROR}
    assert all(span.events == () for span in found.values())


def _generate(gateway: RunningGateway, **fields: Any) -> grpc.StatusCode:
    request = messages.GenerateRequest(**fields)
    with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        call = GenerationServiceStub(channel).Generate(request, timeout=20, metadata=(("x-request-id", "r-2"),))
        with contextlib.suppress(grpc.RpcError):
            list(call)
        code: grpc.StatusCode = call.code()
        return code


@pytest.mark.parametrize("operation", ["chat", "text_completion"])
def test_a_call_of_the_public_api_has_the_same_spans(traced: RunningGateway, spans: Spans, operation: str) -> None:
    """In place of HTTP's, its server's is gRPC's."""
    turn = messages.ChatMessage(role="user", content="hello")
    given = {"conversation": messages.Conversation(messages=[turn])} if operation == "chat" else {"text": "hello"}
    sampling = generation.SamplingParameters(max_token_count=4, temperature=0)
    assert _generate(traced, sampling=sampling, **given) is grpc.StatusCode.OK

    found = spans.by_name(GRPC_METHOD)
    call, told = _attributes(found[GRPC_METHOD]), _attributes(found[f"{operation} {MODEL}"])
    assert found[GRPC_METHOD].kind is SpanKind.SERVER
    assert call.keys() >= (RPC | FORMER_RPC) - {"server.port"}  # any free one here
    assert (call["rpc.method"], call["rpc.service"]) == (GRPC_METHOD, "baton.v1.GenerationService")
    assert (call["rpc.response.status_code"], call["rpc.grpc.status_code"]) == ("OK", 0)
    assert (call["gen_ai.operation.name"], call["baton.request.id"]) == (operation, "r-2")
    assert told.keys() >= OPERATION - {"server.port"}
    assert (told["gen_ai.response.id"], told["gen_ai.request.stream"]) == ("r-2", True)
    assert (told["gen_ai.usage.output_tokens"], told["gen_ai.request.temperature"]) == (4, 0)


def test_a_refused_call_of_the_public_api_is_no_error_of_the_server(traced: RunningGateway, spans: Spans) -> None:
    """It has its status in any case."""
    assert _generate(traced, text="x", model="nope") is grpc.StatusCode.NOT_FOUND

    found = spans.by_name(GRPC_METHOD)
    call = _attributes(found[GRPC_METHOD])
    assert (call["rpc.response.status_code"], call["baton.error.code"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert {span.status.status_code for span in found.values()} == {StatusCode.UNSET}
    assert all(span.events == () for span in found.values())
