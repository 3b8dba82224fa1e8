"""Calls that nodes, router and cache index refuse when something other than Baton makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import pytest

from baton.internal.v1 import (
    cache_index_service_pb2_grpc,
    decode_service_pb2_grpc,
    prefill_service_pb2_grpc,
    router_service_pb2_grpc,
)
from baton.internal.v1.cache_index_service_pb2 import BlockEvents, BlockSnapshot, LookupRequest, PublishRequest
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.kv_pb2 import KvLayout, TransferGrant
from baton.internal.v1.node_pb2 import LoadReport, NodeDescription
from baton.internal.v1.prefill_service_pb2 import PrefillRequest, ProbeLinkRequest
from baton.internal.v1.router_service_pb2 import PlacementPin, PlaceRequest, RegisterRequest
from baton.v1.generation_pb2 import SamplingParameters
from system.bad_input.refusal import Refusal, refusal_of
from system.cluster import Cluster
from system.plan import MODEL_NAME

pytestmark = pytest.mark.usefixtures("bystander")

_GREEDY = SamplingParameters(temperature=0, max_token_count=2)


def _refusal(cluster: Cluster, process: str, stub: Callable[[grpc.Channel], Any], method: str, request: object) -> Any:
    with grpc.insecure_channel(cluster.address_of(process)) as channel:
        return refusal_of(getattr(stub(channel), method), request)


def _invalid(field: str) -> Refusal:
    return Refusal("INVALID_ARGUMENT", "INVALID_FIELD", field)


@pytest.fixture(scope="module")
def node(demo_cluster: Cluster) -> NodeDescription:
    """Return what the decode node says of itself."""
    return demo_cluster.node("decode-0").node


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": "a" * 129}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"attempt": 0}, "attempt"),
        ({"token_ids": [1, 2, 9_999]}, "prompt_token_ids"),
        ({"token_ids": [1, 2, -1]}, "prompt_token_ids"),
        ({"output_token_count": 3}, "output_token_count"),
        ({"output_token_count": -1}, "output_token_count"),
        ({"kv_token_begin": 3}, "kv_token_begin"),
        ({"kv_token_begin": -1}, "kv_token_begin"),
        ({"layers_per_frame": -1}, "layers_per_frame"),
        ({"wire_dtype": 99}, "wire_dtype"),
        ({"cache_salt": "a" * 129}, "cache_salt"),
        ({"priority": 101}, "priority"),
        ({"chunk_token_count": -1}, "chunk_token_count"),
        ({"sampling": SamplingParameters(temperature=-1)}, "temperature"),
        ({"sampling": SamplingParameters(logit_bias={9_999: 1})}, "logit_bias"),
        ({"expected_layout": None}, "expected_layout.rope_state"),
    ],
)
def test_a_prefill_that_cannot_be_computed_is_refused_by_name(
    demo_cluster: Cluster, node: NodeDescription, fields: Mapping[str, Any], field: str
) -> None:
    """INVALID_ARGUMENT with the field."""
    good = {"request_id": "bad", "attempt": 1, "token_ids": [1, 2, 3], "expected_layout": node.kv_layout}
    request = PrefillRequest(**{"sampling": _GREEDY, **good, **fields})  # type: ignore[arg-type]
    request.transfer.CopyFrom(_grant(demo_cluster))
    stub = prefill_service_pb2_grpc.PrefillServiceStub

    assert _refusal(demo_cluster, "prefill-0", stub, "Prefill", request) == _invalid(field)


@pytest.mark.parametrize("token_ids", [[], [1] * 5_000, [1, 2, 3, 4]])
def test_a_prefill_of_other_tokens_than_a_router_granted_is_refused(
    demo_cluster: Cluster, node: NodeDescription, token_ids: list[int]
) -> None:
    """By the claim: none, more than fit, one more."""
    request = PrefillRequest(
        request_id="bad", attempt=1, token_ids=token_ids, expected_layout=node.kv_layout, transfer=_grant(demo_cluster)
    )
    stub = prefill_service_pb2_grpc.PrefillServiceStub

    expected = Refusal("PERMISSION_DENIED", "TRANSFER_NOT_GRANTED", "token_count")
    assert _refusal(demo_cluster, "prefill-0", stub, "Prefill", request) == expected


def _grant(cluster: Cluster) -> TransferGrant:
    """Return what the router grants to a prompt of three tokens."""
    pin = PlacementPin(decode_node_id="decode-0", prefill_node_id="prefill-0")
    asked = PlaceRequest(
        request_id="bad", model_id=MODEL_NAME, prompt_token_count=3, max_token_count=2, pins=[pin], is_admitted=True
    )
    with grpc.insecure_channel(cluster.address_of("router")) as channel:
        stub = router_service_pb2_grpc.RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        grant: TransferGrant = stub.Place(asked, timeout=10).placement.transfer
    return grant


def _with(layout: KvLayout, path: str, value: object) -> KvLayout:
    changed = KvLayout()
    changed.CopyFrom(layout)
    target: Any = changed
    if "]." in path:
        target, path = changed.layers[1], path.partition("].")[2]
    setattr(target, path, value)
    return changed


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("protocol_version", 2, "FAILED_PRECONDITION"),
        ("model_revision_digest", "0" * 32, "FAILED_PRECONDITION"),
        ("tokenizer_digest", "0" * 32, "FAILED_PRECONDITION"),
        ("dtype", 3, "FAILED_PRECONDITION"),
        ("dtype", 0, "INVALID_ARGUMENT"),
        ("rope_state", 2, "FAILED_PRECONDITION"),
        ("rope_state", 77, "INVALID_ARGUMENT"),
        ("layers[1].kv_head_count", 9, "FAILED_PRECONDITION"),
        ("layers[1].kv_head_count", 0, "INVALID_ARGUMENT"),
        ("layers[1].key_head_dim", 9, "FAILED_PRECONDITION"),
        ("layers[1].value_head_dim", 9, "FAILED_PRECONDITION"),
        ("layers[1].value_head_dim", -1, "INVALID_ARGUMENT"),
        ("layers[1].attention_kind", 0, "INVALID_ARGUMENT"),
        ("layers[1].attention_kind", 2, "INVALID_ARGUMENT"),
    ],
)
def test_another_layout_is_refused_by_the_name_of_the_field(
    demo_cluster: Cluster, node: NodeDescription, path: str, value: object, code: str
) -> None:
    """As kv.proto calls it: KV_LAYOUT_MISMATCH where it is another layout, INVALID_FIELD where it is none."""
    layout = _with(node.kv_layout, path, value)
    request = PrefillRequest(request_id="a", attempt=1, token_ids=[1], expected_layout=layout, sampling=_GREEDY)
    stub = prefill_service_pb2_grpc.PrefillServiceStub

    is_mismatch = code == "FAILED_PRECONDITION"
    expected = Refusal(code, "KV_LAYOUT_MISMATCH", path) if is_mismatch else _invalid(f"expected_layout.{path}")
    assert _refusal(demo_cluster, "prefill-0", stub, "Prefill", request) == expected


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"byte_count": -1}, "byte_count"),
        ({"byte_count": 2**40}, "byte_count"),
        ({"byte_count": 1, "message_byte_count": 2**30}, "message_byte_count"),
    ],
)
def test_a_probe_without_bounds_is_refused(demo_cluster: Cluster, fields: Mapping[str, int], field: str) -> None:
    """Nobody makes a node send a terabyte."""
    request, stub = ProbeLinkRequest(**fields), prefill_service_pb2_grpc.PrefillServiceStub

    assert _refusal(demo_cluster, "prefill-0", stub, "ProbeLink", request) == _invalid(field)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"request_id": ""}, _invalid("request_id")),
        ({"request_id": "a\x1b[2J"}, _invalid("request_id")),
        ({"attempt": -1}, _invalid("attempt")),
        ({"model_id": "nope"}, Refusal("FAILED_PRECONDITION", "MODEL_MISMATCH", "model_id")),
        (
            {"model_revision_digest": "0" * 32},
            Refusal("FAILED_PRECONDITION", "MODEL_MISMATCH", "model_revision_digest"),
        ),
        ({"prompt_token_ids": []}, _invalid("prompt_token_ids")),
        ({"prompt_token_ids": [-1]}, _invalid("prompt_token_ids")),
        ({"prompt_token_ids": [1] * 5_000}, _invalid("prompt_token_ids")),
        ({"cache_salt": "a" * 129}, _invalid("cache_salt")),
        ({"priority": 101}, _invalid("priority")),
        ({"sampling": SamplingParameters(temperature=-1, seed=1)}, _invalid("temperature")),
        ({"sampling": SamplingParameters(temperature=1)}, _invalid("sampling.seed")),
    ],
)
def test_a_generation_that_cannot_run_is_refused_by_name(
    demo_cluster: Cluster, fields: Mapping[str, Any], expected: Refusal
) -> None:
    """The decode node trusts no gateway."""
    good = {"request_id": "bad", "attempt": 1, "model_id": MODEL_NAME, "prompt_token_ids": [1, 2, 3]}
    request = DecodeServiceGenerateRequest(**{"sampling": _GREEDY, **good, **fields})  # type: ignore[arg-type]
    stub = decode_service_pb2_grpc.DecodeServiceStub

    assert _refusal(demo_cluster, "decode-0", stub, "Generate", request) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"request_id": ""}, _invalid("request_id")),
        ({"model_id": "nope"}, Refusal("NOT_FOUND", "MODEL_NOT_FOUND", "")),
        ({"prompt_token_count": 0}, _invalid("prompt_token_count")),
        ({"max_token_count": -1}, _invalid("max_token_count")),
        ({"prompt_token_count": 2**31 - 1}, Refusal("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY", "")),
        ({"block_hashes": b"abc"}, _invalid("block_hashes")),
        ({"excluded_node_ids": ["decode-0"]}, Refusal("UNAVAILABLE", "NO_NODE", "")),
    ],
)
def test_a_placement_that_cannot_be_made_is_refused(
    demo_cluster: Cluster, fields: Mapping[str, Any], expected: Refusal
) -> None:
    """By field, or by what no node can do."""
    good = {"request_id": "bad", "model_id": MODEL_NAME, "prompt_token_count": 3, "max_token_count": 3}
    request = PlaceRequest(**{"is_dry_run": True, **good, **fields})  # type: ignore[arg-type]
    stub = router_service_pb2_grpc.RouterServiceStub

    assert _refusal(demo_cluster, "router", stub, "Place", request) == expected


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"node_id": "Bad Id"}, "node.node_id"),
        ({"role": 0}, "node.role"),
        ({"address": ""}, "node.address"),
        ({"model_id": ""}, "node.model_id"),
        ({"block_count": 0}, "node.block_count"),
        ({"block_token_count": -1}, "node.block_token_count"),
        ({"kv_layout": KvLayout()}, "node.kv_layout.rope_state"),
    ],
)
def test_a_node_that_describes_itself_badly_is_refused(
    demo_cluster: Cluster, node: NodeDescription, change: Mapping[str, Any], field: str
) -> None:
    """A node cannot register what the router could not place with."""
    bad = NodeDescription()
    bad.CopyFrom(node)
    bad.node_id = "stranger"
    for name, value in change.items():
        if isinstance(value, KvLayout):
            bad.kv_layout.CopyFrom(value)
        else:
            setattr(bad, name, value)
    stub = router_service_pb2_grpc.RouterServiceStub

    assert _refusal(demo_cluster, "router", stub, "Register", iter([RegisterRequest(node=bad)])) == _invalid(field)
    assert set(demo_cluster.nodes()) == set(demo_cluster.node_names)


def test_a_registration_begins_with_the_node(demo_cluster: Cluster) -> None:
    """Reports of nobody, and empty ones, are refused."""
    stub = router_service_pb2_grpc.RouterServiceStub
    for request in (RegisterRequest(), RegisterRequest(load=LoadReport())):
        assert _refusal(demo_cluster, "router", stub, "Register", iter([request])) == _invalid("report")


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (PublishRequest(), "report"),
        (PublishRequest(events=BlockEvents()), "report"),
        (PublishRequest(snapshot=BlockSnapshot()), "snapshot.node_id"),
        (PublishRequest(snapshot=BlockSnapshot(node_id="stranger", block_hashes=b"abc")), "snapshot.block_hashes"),
    ],
)
def test_a_publication_that_breaks_the_rules_is_refused(
    demo_cluster: Cluster, request_message: PublishRequest, field: str
) -> None:
    """By the field."""
    stub = cache_index_service_pb2_grpc.CacheIndexServiceStub

    assert _refusal(demo_cluster, "cache-index", stub, "Publish", iter([request_message])) == _invalid(field)


def test_a_lookup_of_half_a_hash_is_refused(demo_cluster: Cluster) -> None:
    """Hashes have 16 bytes."""
    request, stub = LookupRequest(block_hashes=b"abc"), cache_index_service_pb2_grpc.CacheIndexServiceStub

    assert _refusal(demo_cluster, "cache-index", stub, "Lookup", request) == _invalid("block_hashes")


@pytest.mark.parametrize(
    ("process", "method"),
    [
        ("prefill-0", "/baton.internal.v1.PrefillService/Prefill"),
        ("decode-0", "/baton.internal.v1.DecodeService/Generate"),
        ("router", "/baton.internal.v1.RouterService/Place"),
        ("router", "/baton.internal.v1.RouterService/Register"),
        ("cache-index", "/baton.internal.v1.CacheIndexService/Publish"),
    ],
)
def test_bytes_that_are_no_message_are_refused(demo_cluster: Cluster, process: str, method: str) -> None:
    """In single requests and in streams of them."""
    with grpc.insecure_channel(demo_cluster.address_of(process)) as channel:
        is_stream = method.endswith(("Register", "Publish"))
        call = channel.stream_stream(method) if is_stream else channel.unary_stream(method)

        assert refusal_of(call, iter([b"\xff"]) if is_stream else b"\xff") == _invalid("request")
