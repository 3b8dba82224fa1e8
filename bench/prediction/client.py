"""Asks the router where a request shall run, and the node that it names to generate: the only client that sees both."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import grpc

from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import PlaceRequest, PlaceResponse
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import PlacementSummary
from bench.local_cluster import MODEL, generate_request
from bench.prediction.sample import Candidate, Sample, TokenArrival, candidate_of, measured_of

_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    name: str
    arrival_seconds: float
    """After the beginning of the run."""
    token_ids: tuple[int, ...]
    num_output_tokens: int


class PredictionClient:
    """Calls to a router and its decode nodes; use as an asynchronous context manager."""

    def __init__(self, router: str, node: NodeDescription, timeout_seconds: float) -> None:
        """Take the router's address, a node of the model that is asked, and the longest time of a call."""
        self._channel = grpc.aio.insecure_channel(router, options=_OPTIONS)
        self._router = RouterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._timeout_seconds = timeout_seconds
        self._placing = asyncio.Lock()
        self._nodes: dict[str, grpc.aio.Channel] = {}
        self._layout = (node.kv_layout.model_revision_digest, node.block_token_count)

    async def __aenter__(self) -> PredictionClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._channel, *self._nodes.values()):
            await channel.close()

    async def run(self, requests: Sequence[Request]) -> list[Sample]:
        """Send requests at their times, whatever became of earlier ones; return their samples in order."""
        origin = time.perf_counter()

        async def run_one(request: Request) -> Sample:
            await asyncio.sleep(request.arrival_seconds - (time.perf_counter() - origin))
            return await self._ask(request, origin)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run_one(request)) for request in requests]
        return [task.result() for task in tasks]

    async def _ask(self, request: Request, origin: float) -> Sample:
        began, num_prompt_tokens = time.perf_counter(), len(request.token_ids)
        called = began
        try:
            async with self._placing:  # both see the same placements: no other comes in between
                asked = await self._place(request, is_dry_run=True)  # only who asks is told all candidates
                began = time.perf_counter()
                placed = await self._place(request)
            called = time.perf_counter()
            arrivals, summary = await self._generate(request, placed)
        except (grpc.aio.AioRpcError, ValueError) as error:
            reason = (
                f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            )
            return Sample(called - origin, num_prompt_tokens, 0, error=reason)
        chosen = candidate_of(placed.placement, placed.placement.prefix_pull.node_id)
        others = (candidate_of(each, each.pull_node_id) for each in asked.candidates if each.HasField("estimate"))
        candidates = (chosen, *(each for each in others if each.way != chosen.way))
        unlike = _unlike(summary, chosen)
        measured = None if unlike else measured_of(summary, arrivals, asked=began, called=called)
        num_tokens = arrivals[-1].num_tokens
        return Sample(called - origin, num_prompt_tokens, num_tokens, chosen, candidates, measured, unlike)

    async def _place(self, request: Request, *, is_dry_run: bool = False) -> PlaceResponse:
        message = PlaceRequest(
            request_id=request.name,
            model_id=MODEL,
            prompt_token_count=len(request.token_ids),
            max_token_count=request.num_output_tokens,
            block_hashes=block_hashes(*self._layout, request.token_ids),
            is_dry_run=is_dry_run,
        )
        response: PlaceResponse = await self._router.Place(message, timeout=self._timeout_seconds)
        return response

    async def _generate(self, request: Request, placed: PlaceResponse) -> tuple[list[TokenArrival], PlacementSummary]:
        stub = DecodeServiceStub(self._node(placed.placement.decode_address))  # type: ignore[no-untyped-call]
        message = generate_request(
            request.name, request.token_ids, request.num_output_tokens, placement=placed.placement
        )
        arrivals, summary = list[TokenArrival](), PlacementSummary()
        async for response in stub.Generate(message, timeout=self._timeout_seconds):
            if response.HasField("tokens"):
                num_tokens = response.tokens.output_index + len(response.tokens.token_ids)
                arrivals.append(TokenArrival(time.perf_counter(), num_tokens))
            elif response.HasField("finished"):
                summary = response.finished.summary
        if not arrivals:
            raise ValueError("an answer without output")
        return arrivals, summary

    def _node(self, address: str) -> grpc.aio.Channel:
        if address not in self._nodes:
            self._nodes[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return self._nodes[address]


def block_hashes(model_revision_digest: str, block_tokens: int, token_ids: Sequence[int]) -> bytes:
    """Return the chained hashes of a prompt's full blocks, 16 bytes each, as gateways do (kv/hashing.py)."""
    text = f"baton/kv/1\0{model_revision_digest}\0{block_tokens}\0"
    parent, joined = blake2b(text.encode(), digest_size=16).digest(), bytearray()
    for start in range(0, len(token_ids) // block_tokens * block_tokens, block_tokens):
        block = struct.pack(f"<{block_tokens}i", *token_ids[start : start + block_tokens])
        parent = blake2b(parent + block, digest_size=16).digest()
        joined += parent
    return bytes(joined)


def _unlike(summary: PlacementSummary, chosen: Candidate) -> str:
    """Return why what happened is not what was placed; empty if it is."""
    if summary.fallback_reason:
        return f"fallback: {summary.fallback_reason}"
    if summary.preemption_count:
        return "preempted"
    if (summary.prefill_node_id or summary.decode_node_id) != chosen.prefill_node:
        return f"computed on {summary.prefill_node_id}"
    return ""
