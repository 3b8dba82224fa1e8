"""The order of one long prompt on the wire, read from the spans of a running cluster."""

from __future__ import annotations

import json
import secrets
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from baton.telemetry import names
from baton.v1 import generation_pb2
from baton.v1 import generation_service_pb2 as messages
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from checkpoints import checkpoint
from order import RUNS_ALL
from system.cluster import Cluster
from system.plan import HOST, MODEL_NAME, free_ports
from system.slow_link import SlowLink
from system.span_receiver import SpanReceiver
from telemetry import conventions

NUM_PROMPT_TOKENS = 32
TIMEOUT_SECONDS = 60.0
MOST_TRACES = 30
SLOW_RATES = (4e6, 2e6, 1e6, 5e5)
"""Of a link over which the KV of a prompt takes longer than its computation, 2.6 s and more; bytes/s."""
LEAST_PREFILL_SECONDS = 1.0
"""Of a prompt, whatever the machine does: less than its layers' times together."""
PREFILL_SPAN = "baton.internal.v1.PrefillService/Prefill"
_SERVE = "baton.internal.v1.DecodeService/Serve"
_CLIENT, _SERVER = Span.SPAN_KIND_CLIENT, Span.SPAN_KIND_SERVER
MOCK = {"mock_shape": "llama-3.1-70b", "dtype": "bfloat16"}
"""80 layers of 131 kB each for this prompt, computed in 17 ms each by an M2: a link on this machine, even a busy one,
is far quicker than that."""


class Trace(NamedTuple):
    """What was seen of one request; times in nanoseconds since 1970."""

    computed: dict[int, int]
    """When K and V of a layer existed at the sender, by layer."""
    received: dict[int, int]
    """When they had arrived, by layer."""
    client_first_token: int
    """When the client read its first token."""


class Bench(NamedTuple):
    """A cluster under observation."""

    cluster: Cluster
    link: SlowLink
    spans: SpanReceiver


@pytest.fixture(scope="module", params=["grpc", "fast"] if RUNS_ALL else ["fast"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Return a mock cluster whose prefill node is reached over a link whose rate the test sets, by either transport.

    The router is told that the link is slow, so that it sends every layer by itself.
    """
    fast_address = f"{HOST}:{free_ports(['fast'])['fast']}"
    advertised = "fast_advertise_address" if request.param == "fast" else "advertise_address"
    with (
        pytest.MonkeyPatch.context() as patch,
        SpanReceiver() as spans,
        SlowLink(lambda: fast_address if request.param == "fast" else cluster.address_of("prefill-0")) as link,
    ):
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{spans.address}")
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        settings = {
            "router": {"prefill_policy": "remote", "default_link_bytes_per_second": "5e6"},
            "prefill-0": {
                **MOCK,
                "mock_hardware": "m2",
                "fast_port": fast_address.rpartition(":")[2],
                advertised: link.address,
            },
            "decode-0": {**MOCK, "mock_hardware": "m3-ultra", "probe_bytes": "0", "kv_transport": request.param},
        }
        cluster = Cluster(checkpoint("llama"), prefill=("mock",), decode=("mock",), settings=settings)
        with cluster:
            yield Bench(cluster, link, spans)


def test_a_layer_is_received_before_the_next_one_is_computed(bench: Bench) -> None:
    """On a fast link KV leaves layer by layer, while the computation is still running.

    The first prompt makes the connection, and a busy machine may hold up a frame: one trace of many must show it.
    """
    bench.link.bytes_per_second = 0.0

    overlaps = []
    for seed in range(10, 10 + MOST_TRACES):
        trace = _generate(bench, seed)
        overlaps.append([layer for layer in range(79) if trace.received[layer] < trace.computed[layer + 1]])
        if 0 in overlaps[-1] and len(overlaps[-1]) > 40:
            return
    raise AssertionError(overlaps)


def test_the_bars_of_the_trace_show_the_overlap(bench: Bench) -> None:
    """A trace view draws spans: each layer's computation and its way, the way beside the next layer's computation."""
    bench.link.bytes_per_second = 0.0
    layers = range(40)
    verbs = ("compute", "transfer")

    trace_id, _ = _ask(bench, seed=4)
    wanted = [names.layers_span(verb, layer, 1) for verb in verbs for layer in layers]
    spans = bench.spans.wait_for_trace(bytes.fromhex(trace_id), wanted, TIMEOUT_SECONDS)

    computed, sent = ([spans[names.layers_span(verb, layer, 1)] for layer in layers] for verb in verbs)
    assert all(old.end_time_unix_nano == new.start_time_unix_nano for old, new in pairwise(computed))
    assert all(each.end_time_unix_nano > each.start_time_unix_nano for each in computed)
    assert any(
        way.end_time_unix_nano < later.end_time_unix_nano for way, later in zip(sent, computed[1:], strict=False)
    )


def test_the_first_token_reaches_the_client_before_the_last_kv_frame(bench: Bench) -> None:
    """On a slow link the first token overtakes the frames that wait: the client does not wait for the transfer.

    A busy machine may hold the token up for longer than frames wait: then they wait twice as long.
    """
    leads = []
    for seed, bytes_per_second in enumerate(SLOW_RATES, 51):  # the first token after these is text by itself
        bench.link.bytes_per_second = bytes_per_second
        trace = _generate(bench, seed)
        assert max(trace.computed.values()) < trace.client_first_token
        leads.append(max(trace.received.values()) - trace.client_first_token)
        if leads[-1] > 0:
            return
    raise AssertionError(leads)


def test_the_trace_tells_each_term_estimated_and_measured(bench: Bench) -> None:
    """Why a request was slow is one look: what the router expected stands beside what came."""
    bench.link.bytes_per_second = 0.0

    trace_id, _ = _ask(bench, seed=3)
    place, gateway = "baton.internal.v1.RouterService/Place", f"{names.OPERATION_TEXT_COMPLETION} {MODEL_NAME}"
    spans = bench.spans.wait_for_trace(bytes.fromhex(trace_id), (place, gateway), TIMEOUT_SECONDS)

    estimated = _numbers(spans[place], "baton.estimated.")
    beside = _numbers(spans[gateway], "baton.estimated.")
    measured = _numbers(spans[gateway], "baton.measured.")
    ratios = _numbers(spans[gateway], "baton.measured_by_estimated.")
    assert estimated.keys() >= {"queue_seconds", "prefill_seconds", "transfer_seconds", "step_seconds"}
    terms = ("queue", "prefill", "transfer", "exposed", "join", "start", "step", "decode", "total")
    assert measured.keys() == {f"{term}_seconds" for term in terms}
    assert beside.keys() - {"imposed_seconds"} == measured.keys()  # where others are in the batch still
    assert beside["prefill_seconds"] == estimated["prefill_seconds"]
    assert ratios["prefill"] == measured["prefill_seconds"] / estimated["prefill_seconds"]
    assert estimated["prefill_seconds"] > 0  # follows what earlier prompts took: on a busy machine, any multiple
    assert measured["prefill_seconds"] > LEAST_PREFILL_SECONDS


@pytest.mark.parametrize("is_rest", [True, False], ids=["rest", "grpc"])
def test_every_hop_has_the_spans_of_the_conventions(bench: Bench, is_rest: bool) -> None:
    """From the client to the prefill node: a span of each call at its client and one at its server, in one line."""
    bench.link.bytes_per_second = 0.0
    trace_id = _ask(bench, seed=41)[0] if is_rest else _ask_by_grpc(bench, seed=6)
    operation = f"{names.OPERATION_TEXT_COMPLETION} {MODEL_NAME}"
    root = "POST /v1/completions" if is_rest else "baton.v1.GenerationService/Generate"
    way = [(root, _SERVER), (operation, _CLIENT), (_SERVE, _CLIENT), (_SERVE, _SERVER)]
    way += [(names.SPAN_RECEIVE_KV, _CLIENT), (PREFILL_SPAN, _SERVER)]

    spans = bench.spans.wait_for_spans(
        bytes.fromhex(trace_id), lambda spans: {(each.name, each.kind) for each in spans} >= set(way), TIMEOUT_SECONDS
    )

    hops = [next(each for each in spans if (each.name, each.kind) == hop) for hop in way]
    assert all(child.parent_span_id == parent.span_id for parent, child in pairwise(hops))
    attributes = [{each.key for each in hop.attributes} for hop in hops]
    needed = (conventions.HTTP_SERVER if is_rest else conventions.RPC, conventions.OPERATION, *[conventions.RPC] * 4)
    assert [wanted - given for wanted, given in zip(needed, attributes, strict=True)] == [set()] * len(way)
    given = {each.key for span in spans for part in (span, *span.events) for each in part.attributes}
    assert conventions.strangers(given) == set()
    services = {f"baton-{role}" for role in ("gateway", "router", "decode", "prefill")}
    assert bench.spans.resources.keys() >= services
    assert all(resource.keys() >= conventions.RESOURCE for resource in bench.spans.resources.values())
    assert bench.spans.schema_urls == {names.SCHEMA_URL}


def _numbers(span: Span, prefix: str) -> dict[str, float]:
    """Return the attributes of a span whose names begin so, without that beginning."""
    found = [each for each in span.attributes if each.key.startswith(prefix)]
    return {each.key.removeprefix(prefix): each.value.double_value for each in found}


def _generate(bench: Bench, seed: int) -> Trace:
    trace_id, client_first_token = _ask(bench, seed)
    wanted = (PREFILL_SPAN, names.SPAN_RECEIVE_KV)
    spans = bench.spans.wait_for_trace(bytes.fromhex(trace_id), wanted, TIMEOUT_SECONDS)
    return Trace(
        _event_times(spans[PREFILL_SPAN], names.EVENT_LAYER_COMPUTED),
        _event_times(spans[names.SPAN_RECEIVE_KV], names.EVENT_FRAME_RECEIVED),
        client_first_token,
    )


def _ask(bench: Bench, seed: int) -> tuple[str, int]:
    """Generate after a prompt; return the trace and when the first token was read, nanoseconds since 1970."""
    trace_id = secrets.token_hex(16)
    body = {
        "model": MODEL_NAME,
        "prompt": _prompt(seed),
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
    }
    headers = {"content-type": "application/json", "traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
    url = f"{bench.cluster.base_url}/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        first = next(line for line in response if line.startswith(b"data:"))
        client_first_token = time.time_ns()
        assert b'"text"' in first
        assert b'"fallback_reason":""' in response.read()
    return trace_id, client_first_token


def _ask_by_grpc(bench: Bench, seed: int) -> str:
    """Generate after a prompt by the public gRPC API; return the trace."""
    trace_id = secrets.token_hex(16)
    metadata = (("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-01"),)
    sampling = generation_pb2.SamplingParameters(max_token_count=2, temperature=0)
    tokens = messages.TokenSequence(token_ids=_prompt(seed))
    request = messages.GenerateRequest(model=MODEL_NAME, tokens=tokens, sampling=sampling)
    with grpc.insecure_channel(bench.cluster.grpc_address) as channel:
        *_, last = GenerationServiceStub(channel).Generate(request, timeout=TIMEOUT_SECONDS, metadata=metadata)  # type: ignore[no-untyped-call]
    assert not last.finished.placement.fallback_reason
    return trace_id


def _prompt(seed: int) -> list[int]:
    return [(7 * seed + index * index) % 400 + 3 for index in range(NUM_PROMPT_TOKENS)]


def _event_times(span: Span, name: str) -> dict[int, int]:
    """Return the time of each event of a name, by layer."""
    return {
        attribute.value.int_value: event.time_unix_nano
        for event in span.events
        if event.name == name
        for attribute in event.attributes
        if attribute.key == names.LAYER
    }
