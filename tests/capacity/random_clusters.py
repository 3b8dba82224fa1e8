"""Random unlike clusters and requests, seeded: to compare two ways to decide."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from baton.capacity.cost import CLOSED, ModelShape, OpenPass, PromptQueue
from baton.capacity.kv_transfer import AUTO, Stream, WireOption, WirePolicy
from baton.capacity.placement import PrefillPolicy
from baton.capacity.reference_models import LLAMA_3_1_8B
from baton.capacity.snapshot import (
    ClusterSnapshot,
    Link,
    LowerPrefix,
    NodeLoad,
    NodePair,
    NodeRole,
    NodeSnapshot,
    PlacementRequest,
    TermSpread,
    TierRates,
)
from capacity.microbench.loaded_router import random_load, random_profile

MAX_NODES = 12
POLICIES: tuple[PrefillPolicy, ...] = ("cheapest", "local", "remote")


def random_cluster(rng: random.Random) -> tuple[ClusterSnapshot, PlacementRequest, PrefillPolicy]:
    """Return a cluster of 1 to 12 nodes, a request and a policy: every feature that placement knows, ties too."""
    are_alike = rng.random() < 0.3
    common = _node(rng, "", "decode", busy=rng.random() < 0.5)
    nodes = []
    for index in range(rng.randint(1, MAX_NODES)):
        role: NodeRole = rng.choice(("prefill", "decode", "decode", "worker"))
        node_id = f"n{rng.randrange(3)}-{index}"
        drawn = _node(rng, node_id, role, busy=rng.random() < 0.7)
        nodes.append(replace(common, node_id=node_id, role=role) if are_alike and rng.random() < 0.8 else drawn)
    links = {
        (sender.node_id, receiver.node_id): _link(rng, receiver.shape.kv_bytes_per_token)
        for sender in nodes
        for receiver in nodes
        if receiver.can_decode and sender is not receiver and rng.random() < (0.3 if are_alike else 0.9)
    }
    request = random_request(rng, nodes)
    lengths = {node.node_id: request.pullable_from(node.node_id) for node in nodes}
    holders = sorted((each for each in lengths if lengths[each]), key=lambda each: (-lengths[each], each))[:4]
    snapshot = ClusterSnapshot(
        nodes=tuple(nodes),
        default_link=Link(10 ** rng.uniform(7, 10.5), rng.choice((0.0, 1e-3))),
        links=links,
        expected_output_tokens=rng.choice((None, 1.0, rng.uniform(1, 600))),
        wire_policy=rng.choice((WirePolicy(), WirePolicy(allowed_loss=0.05), WirePolicy("int8", AUTO, 0.0))),
        holder_ids=frozenset(holders),
    )
    return snapshot, request, rng.choice(POLICIES) if rng.random() < 0.3 else "cheapest"


def random_request(rng: random.Random, nodes: list[NodeSnapshot]) -> PlacementRequest:
    """Return a request, some of whose prompt may be cached on some nodes, in whole blocks or not."""
    num_tokens = rng.choice((1, rng.randint(2, 600), rng.randint(100, 9000), rng.randint(100, 40_000)))
    cached: dict[str, int] = {}
    lower: dict[str, LowerPrefix] = {}
    if rng.random() < 0.5:
        for node in nodes:
            num_blocks = rng.randint(0, 2 * num_tokens // node.block_tokens)
            if rng.random() < 0.4:
                cached[node.node_id] = num_blocks * node.block_tokens
            if rng.random() < 0.3:
                num_host = rng.randint(0, num_blocks)
                num_disk = rng.randint(0, num_blocks)
                lower[node.node_id] = LowerPrefix(
                    *(count * node.block_tokens for count in (num_host, num_host + num_disk, num_disk))
                )
    pins: frozenset[NodePair] = frozenset()
    decoders = [node.node_id for node in nodes if node.can_decode]
    if decoders and rng.random() < 0.1:
        others = ["", *(node.node_id for node in nodes if node.can_prefill)]
        pins = frozenset(NodePair(rng.choice(decoders), rng.choice(others)) for _ in range(rng.randint(1, 5)))
    return PlacementRequest(
        num_prompt_tokens=num_tokens,
        max_tokens=rng.choice((1, rng.randint(1, 2000))),
        cached_tokens=cached,
        lower_tokens=lower,
        excluded_node_ids=frozenset(node.node_id for node in nodes if rng.random() < 0.05),
        pins=pins,
        needs_local_prefill=rng.random() < 0.05,
    )


def _node(rng: random.Random, node_id: str, role: NodeRole, *, busy: bool) -> NodeSnapshot:
    num_blocks, max_batch_size = rng.choice((40, 1000, 10_000)), rng.choice((1, 8, 64))
    return NodeSnapshot(
        node_id=node_id,
        role=role,
        shape=replace(_SHAPE, max_context_tokens=rng.choice((2048, 131_072, 131_072))),
        profile=random_profile(rng),
        num_blocks=num_blocks,
        block_tokens=rng.choice((16, 16, 16, 32)),
        max_batch_size=max_batch_size,
        load=random_load(rng, max_batch_size, num_blocks) if busy else NodeLoad(num_free_blocks=num_blocks),
        **(_work(rng) if busy else {}),
        last_used=rng.randint(0, 9),
        spread=TermSpread(*(rng.choice((0.0, 0.1, rng.random())) for _ in range(3))),
        unusable_reason=rng.choice(("draining", *("",) * 19)),
        max_step_tokens=rng.choice((0, 512, 8192)),
        serves_blocks=rng.random() < 0.9,
        tier_rates=TierRates(
            10 ** rng.uniform(8, 11), rng.choice((0.0, 10 ** rng.uniform(8, 10))), rng.choice((0, 500))
        ),
    )


def _work(rng: random.Random) -> dict[str, Any]:
    """Return what a busy node has of queue, past and streams."""
    return {
        "queue": PromptQueue.of(
            [rng.choice((0.0, rng.uniform(0, 0.2), rng.uniform(0, 5))) for _ in range(rng.randint(0, 8))],
            rng.choice((0.0, rng.uniform(0, 0.5))),
            rng.choice((CLOSED, OpenPass(rng.randint(1, 2000), rng.uniform(0, 1000), rng.uniform(0, 0.5)))),
        ),
        "arrivals_per_second": rng.choice((0.0, rng.uniform(0, 10))),
        "arrival_seconds": rng.choice((0.0, rng.uniform(0, 5))),
        "prompts_per_second": rng.choice((0.0, rng.uniform(0, 10))),
        "prompt_share": rng.choice((0.0, rng.uniform(0, 1.5))),
        "sending": _streams(rng),
        "receiving": _streams(rng),
        "send_bytes_per_second": rng.choice((0.0, 10 ** rng.uniform(8, 10.5))),
        "receive_bytes_per_second": rng.choice((0.0, 10 ** rng.uniform(8, 10.5))),
    }


def _streams(rng: random.Random) -> tuple[Stream, ...]:
    streams = []
    for _ in range(rng.choice((0, 0, 1, 3))):
        begin = max(0.0, rng.uniform(-3, 3))
        end = begin + rng.choice((0.0, rng.uniform(0.01, 3)))
        ready, later = rng.choice((0.0, rng.uniform(0, 1e9))), rng.uniform(0, 1e9)
        receiver_id = f"n{rng.randrange(3)}-{rng.randrange(MAX_NODES)}"
        streams.append(Stream(ready, later, begin, end, "", receiver_id))
    return tuple(streams)


def _link(rng: random.Random, token_bytes: int) -> Link:
    own = WireOption("bfloat16", token_bytes // 2, token_bytes // 2)
    narrow = WireOption("int8", token_bytes // 4, token_bytes // 4, 1e-8, 1e-8, 0.01, 0.01)
    fp8 = WireOption("fp8_e4m3", token_bytes // 4, token_bytes // 4, 1e-7, 1e-7, rng.choice((0.0, 0.04)), 0.02)
    return Link(
        bytes_per_second=10 ** rng.uniform(7, 10.5),
        round_trip_seconds=rng.choice((0.0, rng.uniform(0, 0.05))),
        is_measured=rng.random() < 0.8,
        mismatch=rng.choice(("KV layouts differ in dtype", *("",) * 9)),
        wires=rng.choice(((), (own,), (own, narrow), (own, narrow, fp8), (replace(narrow, is_conversion=True),))),
        has_unlike_caches=rng.random() < 0.1,
        spread=rng.choice((0.0, rng.random())),
    )


_SHAPE: ModelShape = LLAMA_3_1_8B
