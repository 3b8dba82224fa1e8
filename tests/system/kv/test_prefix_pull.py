"""A prefix that one decode node has, asked of another: the router has it pulled, or computed, whichever is quicker."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from baton.demo import checkpoint_dir
from baton.internal.v1.cache_index_service_pb2 import LookupRequest
from baton.internal.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from order import RUNS_ALL
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import COMPLETION_PATH, post

BLOCK_TOKENS = 16
PREFIX = [3 + position * 7 % 250 for position in range(320)]
"""Shared beginning of all prompts; two M2 with a model of 8 billion parameters compute it in half a second."""
NODE = {
    "mock_shape": "llama-3.1-8b",
    "mock_hardware": "m2",
    "dtype": "bfloat16",
    "max_batch_size": "1",
    "probe_bytes": "0",
    "mock_time_scale": "0.5",
}
"""A node at twice the published speed, of one place, over a link of the declared rate."""
TIMEOUT_SECONDS = 60


def completion(*tail: int, **fields: Any) -> dict[str, Any]:
    """Return a request for the prefix and a tail; its output outlasts a pull by far."""
    body = {"model": MODEL_NAME, "prompt": [*PREFIX, *tail], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    return body | fields


def ask(cluster: Cluster, *tail: int, **fields: Any) -> Mapping[str, Any]:
    """Return an answer."""
    reply = post(cluster, COMPLETION_PATH, completion(*tail, **fields))
    assert reply.status == 200, reply.body
    return dict(reply.body)


@contextmanager
def busy_holder(cluster: Cluster) -> Iterator[str]:
    """Fill the only place of a decode node, whose cache then has the prefix; yield its name."""
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=TIMEOUT_SECONDS)
    try:
        body = json.dumps(completion(5, max_tokens=4000, stream=True))
        connection.request("POST", COMPLETION_PATH, body, {"content-type": "application/json"})
        assert connection.getresponse().readline().startswith(b"data:")
        cluster.wait_until(lambda: holders(cluster), "the prefix is published")
        (holder,) = holders(cluster)
        yield holder
    finally:
        connection.close()


def holders(cluster: Cluster) -> list[str]:
    """Return the nodes that have the whole prefix."""
    layout = cluster.node("decode-0").node.kv_layout
    hashes = block_hashes(root_hash(layout.model_revision_digest, BLOCK_TOKENS), PREFIX, BLOCK_TOKENS)
    with grpc.insecure_channel(cluster.address_of("cache-index")) as channel:
        stub = CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        found = stub.Lookup(LookupRequest(block_hashes=join_hashes(hashes)), timeout=10).prefixes
    return [prefix.node_id for prefix in found if prefix.block_count == len(hashes)]


@pytest.mark.parametrize(
    ("link_bytes_per_second", "is_pulled"), [(1.25e9, True), *([(1.25e7, False)] if RUNS_ALL else [])]
)
def test_a_prefix_of_a_busy_node_comes_whichever_way_is_quicker(link_bytes_per_second: float, is_pulled: bool) -> None:
    """Over 10 Gb/s it is pulled in a fraction of the time that computing takes; over 100 Mb/s it is computed."""
    router = {"default_link_bytes_per_second": str(link_bytes_per_second), "cache_lookup_seconds": "10"}
    settings = {"decode": NODE, "router": router}
    with Cluster(checkpoint_dir(), prefill=(), decode=("mock", "mock"), settings=settings) as cluster:
        with busy_holder(cluster) as holder:
            answer = ask(cluster, 9, 9)
        cluster.wait_idle()
        computed = ask(cluster, 9, 9, cache_salt="computed anew", max_tokens=4)

    ran = answer["baton"]
    assert ran["decode_node"] != holder
    assert answer["choices"][0]["text"].startswith(computed["choices"][0]["text"])
    assert ran["kv_breaks"] == computed["baton"]["kv_breaks"] == []
    assert "pull_node" not in computed["baton"]
    if is_pulled:
        assert (ran["pull_node"], ran["pulled_tokens"]) == (holder, len(PREFIX))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PREFIX)
    else:
        assert "pull_node" not in ran
        assert ran["decode_cached_tokens"] == ran["kv_bytes"] == 0
