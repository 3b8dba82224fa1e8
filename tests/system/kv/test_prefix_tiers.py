"""A prefix that has left a node's device for host memory and disk: the router sends who wants it there all the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from baton.demo import checkpoint_dir
from baton.internal.v1 import decode_service_pb2, router_service_pb2
from baton.internal.v1.cache_index_service_pb2 import LookupRequest, NodePrefix
from baton.internal.v1.cache_index_service_pb2_grpc import CacheIndexServiceStub
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv.hashing import BlockHash, block_hashes, join_hashes, root_hash
from baton.v1 import generation_pb2
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import COMPLETION_PATH, post

BLOCK_TOKENS = 16
NUM_BLOCKS = 4
PREFIX = [3 + position * 7 % 250 for position in range(NUM_BLOCKS * BLOCK_TOKENS)]
FILLER = [5 + position * 11 % 250 for position in range(len(PREFIX) + BLOCK_TOKENS - 1)]
"""Takes all blocks of a node."""
SHORT = [7] * (BLOCK_TOKENS + 1)
"""Teaches a node what a pass takes that computes little."""
HOLDER, OTHER = "decode-1", "decode-0"
"""Of two nodes that are alike, the router takes the first by name."""
NODE = {
    "mock_shape": "llama-3.1-70b",
    "mock_hardware": "m2",
    "dtype": "bfloat16",
    "max_batch_size": "1",
    "num_blocks": str(NUM_BLOCKS + 1),
    "host_kv_bytes": str(50_000_000),
    "probe_bytes": "0",
    "mock_time_scale": "0.4",
}
"""Computes the prefix in 1.1 s; its KV are 21 MB, which come back in less on any machine, but not over the link."""
TIMEOUT_SECONDS = 120


def test_a_prefix_is_asked_of_the_node_that_can_bring_it_back(tmp_path: Path) -> None:
    """From host memory, after others took its blocks; and from disk, after the node died: the index is told of both."""
    settings = {
        "decode": NODE,
        HOLDER: {"disk_kv_dir": str(tmp_path)},
        "router": {"cache_lookup_seconds": "10", "default_link_bytes_per_second": "1e6"},
    }
    with Cluster(checkpoint_dir(), prefill=(), decode=("mock", "mock"), settings=settings) as cluster:
        for name, prompt in (("short", SHORT), ("prefix", PREFIX), ("filler", FILLER)):
            compute(cluster, name, prompt)
        hashes = prefix_hashes(cluster)
        on_host = NodePrefix(node_id=HOLDER, host_block_count=NUM_BLOCKS, lower_block_count=NUM_BLOCKS)
        cluster.wait_until(lambda: lookup(cluster, hashes) == [on_host], "the prefix is in host memory")
        check_choice(cluster, hashes)
        from_host = ask(cluster, 9)

        cluster.wait_until(lambda: are_written(tmp_path, hashes), "the prefix is on disk")
        cluster.restart(HOLDER)
        on_disk = NodePrefix(node_id=HOLDER, lower_block_count=NUM_BLOCKS, disk_block_count=NUM_BLOCKS)
        cluster.wait_until(lambda: lookup(cluster, hashes) == [on_disk], "the prefix is known to be on disk")
        check_choice(cluster, hashes)
        from_disk = ask(cluster, 9)
        computed = ask(cluster, 9, cache_salt="computed anew")

    for answer in (from_host, from_disk):
        assert answer["baton"]["decode_node"] == HOLDER
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PREFIX)
        assert answer["choices"][0]["text"] == computed["choices"][0]["text"]
    assert computed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def compute(cluster: Cluster, name: str, prompt: Sequence[int]) -> None:
    """Have the holder compute a prompt, without the router, which would learn from it."""
    request = decode_service_pb2.DecodeServiceGenerateRequest(
        request_id=name,
        attempt=1,
        model_id=MODEL_NAME,
        prompt_token_ids=prompt,
        sampling=generation_pb2.SamplingParameters(temperature=0, ignore_eos=True, max_token_count=1),
    )
    with grpc.insecure_channel(cluster.address_of(HOLDER)) as channel:
        stub = DecodeServiceStub(channel)  # type: ignore[no-untyped-call]
        *_, last = stub.Generate(request, timeout=TIMEOUT_SECONDS)
    assert last.finished.summary.decode_cached_token_count == 0


def prefix_hashes(cluster: Cluster) -> list[BlockHash]:
    """Return the hashes of the prefix."""
    layout = cluster.node(HOLDER).node.kv_layout
    return block_hashes(root_hash(layout.model_revision_digest, BLOCK_TOKENS), PREFIX, BLOCK_TOKENS)


def lookup(cluster: Cluster, hashes: Sequence[BlockHash]) -> list[NodePrefix]:
    """Return who holds what of the prefix."""
    with grpc.insecure_channel(cluster.address_of("cache-index")) as channel:
        stub = CacheIndexServiceStub(channel)  # type: ignore[no-untyped-call]
        return list(stub.Lookup(LookupRequest(block_hashes=join_hashes(hashes)), timeout=TIMEOUT_SECONDS).prefixes)


def are_written(folder: Path, hashes: Sequence[BlockHash]) -> bool:
    """Return whether the files of all blocks are complete."""
    return all(list(folder.glob(f"*-{block_hash.hex()}.kv")) for block_hash in hashes)


def check_choice(cluster: Cluster, hashes: Sequence[BlockHash]) -> None:
    """Wait until the holder has reported its rates; check that they alone speak for it."""

    def place(**fields: Any) -> router_service_pb2.PlaceResponse:
        request = router_service_pb2.PlaceRequest(
            request_id="dry",
            model_id=MODEL_NAME,
            prompt_token_count=len(PREFIX) + 1,
            max_token_count=1,
            is_dry_run=True,
            **fields,
        )
        with grpc.insecure_channel(cluster.address_of("router")) as channel:
            return RouterServiceStub(channel).Place(request, timeout=TIMEOUT_SECONDS)  # type: ignore[no-untyped-call, no-any-return]

    cluster.wait_until(lambda: cluster.node(HOLDER).load.HasField("tier_rates"), "the holder tells its rates")
    cluster.wait_idle()
    known = place(block_hashes=join_hashes(hashes))
    assert (known.placement.decode_node_id, place().placement.decode_node_id) == (HOLDER, OTHER)
    assert known.candidates[0].decode_restored_token_count == len(PREFIX)
    assert 0 < known.placement.estimate.restore_seconds < place().placement.estimate.prefill_seconds


def ask(cluster: Cluster, *tail: int, **fields: Any) -> Mapping[str, Any]:
    """Return the answer to the prefix and a tail."""
    body = {"model": MODEL_NAME, "prompt": [*PREFIX, *tail], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    reply = post(cluster, COMPLETION_PATH, body | fields)
    assert reply.status == 200, reply.body
    return dict(reply.body)
