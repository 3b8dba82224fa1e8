"""A second decode node, whose prefix cache the first one may read, and a way to damage what passes between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from baton.decode.generation import DecodeGenerator
from baton.decode.peers import PeerSet
from baton.decode.servicer import DecodeServicer
from baton.engine.request import SamplingParams
from baton.engine.runners.base import Runner
from baton.internal.v1 import block_service_pb2, decode_service_pb2, decode_service_pb2_grpc, router_service_pb2
from baton.kv_transport.frame_codec import serialize_response
from baton.kv_transport.kv_services import BlockStub, ReceivedPull, add_block_service
from baton.node.block_servicer import BlockServicer
from baton.node.node import WorkerNode
from baton.rpc.channel import open_channel
from baton.telemetry.metrics import Metrics
from decode.grants import grant_pull
from decode.pair import (
    DECODE_ID,
    PATIENT,
    TIMEOUT_SECONDS,
    Damage,
    Node,
    Pair,
    decode_server,
    follow,
    intact,
    request_of,
    usual_budget,
    with_pair,
)
from engine.rig import GREEDY, mock_runner

NEIGHBOUR_ID = "decode-2"


class DamagedBlocks(BlockServicer):
    """Serves a prefix cache and passes it through what the test wants to go wrong."""

    def __init__(self, node: WorkerNode, damage: Damage) -> None:
        super().__init__(node)
        self.damage = damage
        self.requests: list[block_service_pb2.PullBlocksRequest] = []

    async def PullBlocks(self, request: ReceivedPull, context: Any) -> Any:  # noqa: N802
        """Stream blocks, damaged."""
        self.requests.append(request.message)
        responses, damage = super().PullBlocks(request, context), cast(Any, self.damage)  # it knows either response
        async for response in damage(
            block_service_pb2.PullBlocksResponse.FromString(serialize_response(each)) async for each in responses
        ):
            yield response


class Neighbour:
    """A decode node with its server, known to the decode node of a pair."""

    def __init__(self, pair: Pair, damage: Damage, runner: Runner | None) -> None:
        self._pair = pair
        self.node = Node(NEIGHBOUR_ID, runner or mock_runner())
        node = cast(WorkerNode, self.node)
        self.servicer = DamagedBlocks(node, damage)
        budget = usual_budget()
        generator = DecodeGenerator(node, PeerSet(0, lambda _link: None, budget=budget), PATIENT, Metrics(), budget)
        self.server = decode_server(DecodeServicer(generator))
        self.server.add("baton.internal.v1.BlockService", partial(add_block_service, self.servicer))

    async def start(self) -> None:
        """Serve, and make the node known to the pair."""
        self.node.engine.start()
        await self.server.start()
        address = f"127.0.0.1:{self.server.port}"
        self._channel = open_channel(address)
        self.blocks = BlockStub(self._channel)
        pull = self.blocks.PullBlocks
        self.blocks.PullBlocks = lambda request, **options: pull(
            grant_pull(request, NEIGHBOUR_ID, DECODE_ID), **options
        )
        await self._pair.name_peers(router_service_pb2.Peer(node_id=NEIGHBOUR_ID, address=address, epoch=1))

    async def close(self) -> None:
        """Stop serving."""
        await self._channel.close()
        await self.server.drain(0)
        await asyncio.to_thread(self.node.engine.close)

    async def warm(self, prompt: Sequence[int], **fields: Any) -> None:
        """Fill its prefix cache with a prompt."""
        params = SamplingParams(temperature=0.0, max_tokens=1)
        request = request_of(prompt, params, prefill_node_id="", request_id="warm", **fields)
        stub = decode_service_pb2_grpc.DecodeServiceStub(self._channel)  # type: ignore[no-untyped-call]
        await follow(stub.Generate(request, timeout=TIMEOUT_SECONDS))

    async def forget(self) -> None:
        """Have everything leave its prefix cache."""
        pool = self.node.engine.scheduler.pool
        await self.node.ask(lambda: pool.forget(range(pool.num_blocks)))

    async def move_to_host(self) -> None:
        """Have everything leave its prefix cache for host memory."""
        pool, store = self.node.engine.scheduler.pool, self.node.engine.scheduler.offload.store

        def move() -> None:
            blocks = pool.next_evicted(pool.num_blocks)
            copies = self.node.runner.begin_copies([each.block_id for each in blocks])
            for each, contents in zip(blocks, copies.blocks(), strict=True):
                store.put(each.block_hash, contents)
            pool.forget(range(pool.num_blocks))

        await self.node.ask(move)


def with_neighbour(
    client: Callable[[Pair, Neighbour], Awaitable[None]],
    *,
    damage: Damage = intact,
    neighbour_runner: Runner | None = None,
    **parts: Any,
) -> None:
    """Run a client against two decode nodes; afterwards every block of both must be free."""

    async def run(pair: Pair) -> None:
        neighbour = Neighbour(pair, damage, neighbour_runner)
        await neighbour.start()
        try:
            await client(pair, neighbour)
            await neighbour.node.settle()
        finally:
            await neighbour.close()

    with_pair(run, **parts)


def pulling_request(
    prompt: Sequence[int],
    num_blocks: int = 1 << 20,
    *,
    params: SamplingParams = GREEDY,
    pull: dict[str, Any] | None = None,
    **fields: Any,
) -> decode_service_pb2.DecodeServiceGenerateRequest:
    """Return a request whose beginning is to be taken from the neighbour."""
    request = request_of(prompt, params, prefill_node_id="", **fields)
    whole = {"node_id": NEIGHBOUR_ID, "block_count": num_blocks, "layers_per_frame": 2, **(pull or {})}
    request.placement.prefix_pull.CopyFrom(router_service_pb2.PrefixPull(**whole))
    return request
