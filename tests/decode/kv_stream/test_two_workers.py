"""Two workers that compute prompts for each other: what one waits for must not wait for what the other waits for."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import cast

import pytest

from baton.decode.generation import DecodeGenerator
from baton.decode.kv_stream.reader import Timeouts
from baton.decode.kv_stream.remote_prefill import TOO_LARGE
from baton.decode.peers import PeerSet
from baton.decode.servicer import DecodeServicer
from baton.internal.v1 import decode_service_pb2_grpc, router_service_pb2
from baton.kv_transport.kv_services import add_prefill_service
from baton.node.node import WorkerNode
from baton.prefill.prefiller import Prefiller
from baton.prefill.servicer import PrefillServicer
from baton.rpc.channel import open_channel
from baton.telemetry.metrics import Metrics
from decode.grants import grant_generation
from decode.pair import TIMEOUT_SECONDS, Node, decode_server, follow, request_of, usual_budget
from engine.rig import mock_runner, prompt_of

SILENCE_SECONDS = 20.0
"""After which a stream that waits counts as broken."""
BATCH_SIZE = 8


class _Worker:
    """A node of both roles, in this process."""

    def __init__(self, node_id: str, num_blocks: int) -> None:
        self.node = Node(node_id, mock_runner(num_blocks=num_blocks), computes_for_others=True)
        node = cast("WorkerNode", self.node)
        self.peers = PeerSet(0, lambda _: None, choice="grpc", budget=usual_budget())
        prefills = PrefillServicer(Prefiller(node, 1 << 30))
        timeouts = Timeouts(SILENCE_SECONDS, SILENCE_SECONDS)
        generator = DecodeGenerator(node, self.peers, timeouts, Metrics(), usual_budget())
        self.server = decode_server(DecodeServicer(generator))
        self.server.add("baton.internal.v1.PrefillService", partial(add_prefill_service, prefills))

    async def start(self) -> None:
        self.node.engine.start()
        await self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        self._following = asyncio.create_task(self.peers.run())

    async def stop(self) -> None:
        await self.node.settle()
        self._following.cancel()
        await self.server.drain(0)
        await asyncio.to_thread(self.node.engine.close)

    async def ask(self, other: _Worker, number: int, num_tokens: int) -> str:
        """Have a prompt computed by the other and decoded here; return why it was not."""
        request = request_of(
            prompt_of(num_tokens, seed=number),
            prefill_node_id=other.node.node_id,
            request_id=f"{self.node.node_id}-{number}",
        )
        request.placement.decode_node_id = self.node.node_id
        granted = grant_generation(request, self.node.node_id, self.node.runner)
        async with open_channel(self.address) as channel:
            stub = decode_service_pb2_grpc.DecodeServiceStub(channel)  # type: ignore[no-untyped-call]
            return (await follow(stub.Generate(granted, timeout=TIMEOUT_SECONDS))).summary.fallback_reason


@pytest.mark.parametrize(
    ("num_requests", "num_blocks", "num_tokens", "reason"),
    [
        pytest.param(2 * BATCH_SIZE, 1024, 60, "", id="slots"),
        pytest.param(6, 40, 60, "", id="blocks"),
        pytest.param(6, 40, 100, TOO_LARGE, id="more than half of the blocks"),
    ],
)
def test_workers_that_compute_for_each_other_wait_for_no_silence(
    num_requests: int, num_blocks: int, num_tokens: int, reason: str
) -> None:
    """Of each other's prompts as many at once as would fill slots or blocks of both: half is left for those."""

    async def run() -> None:
        workers = [_Worker(f"worker-{index}", num_blocks) for index in range(2)]
        for worker in workers:
            await worker.start()
        pairs = (workers, workers[::-1])
        for worker, other in pairs:
            peer = router_service_pb2.Peer(node_id=other.node.node_id, address=other.address, epoch=1)
            worker.peers.update({peer.node_id: peer})
        began = time.monotonic()
        asked = [one.ask(other, number, num_tokens) for number in range(num_requests) for one, other in pairs]
        reasons = await asyncio.gather(*asked)

        assert reasons == [reason] * len(asked)
        assert time.monotonic() - began < SILENCE_SECONDS
        for worker in workers:
            await worker.stop()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))
