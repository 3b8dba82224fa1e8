"""Calls into a pair of nodes on two hosts with a shaped link between them: the prefill node there, all others here."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from baton.internal.v1 import router_service_pb2
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.node_pb2 import NODE_ROLE_DECODE, NODE_ROLE_PREFILL
from baton.internal.v1.router_service_pb2 import Placement
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import PlacementSummary
from bench.links.hosts import HostedNode, hosted_cluster
from bench.links.shaped_link import ShapedLink
from bench.local_cluster import MODEL, NodeTable, generate_request

_CALL_TIMEOUT_SECONDS = 300.0
_REQUEST_ID = "bench"


class NotRemoteError(RuntimeError):
    """A prompt that the prefill node should have computed was computed elsewhere."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Calls into a running cluster."""

    decode: DecodeServiceStub
    router: RouterServiceStub
    decode_node_id: str
    prefill_node_id: str
    """Id of the prefill node; empty: there is none."""

    def place(self, num_prompt_tokens: int, num_output_tokens: int) -> Placement:
        """Return how the router has a prompt computed, on the prefill node where there is one."""
        pin = router_service_pb2.PlacementPin(decode_node_id=self.decode_node_id, prefill_node_id=self.prefill_node_id)
        request = router_service_pb2.PlaceRequest(
            request_id=_REQUEST_ID,
            model_id=MODEL,
            prompt_token_count=num_prompt_tokens,
            max_token_count=num_output_tokens,
            bypass_prefix_cache=True,
            pins=[pin],
        )
        response: router_service_pb2.PlaceResponse = self.router.Place(request, timeout=_CALL_TIMEOUT_SECONDS)
        return response.placement

    def generate(
        self, placement: Placement, num_prompt_tokens: int, num_output_tokens: int, seed: int
    ) -> tuple[list[float], PlacementSummary]:
        """Generate after a prompt of random tokens, which no prefix cache keeps.

        Returns:
            Seconds (`time.perf_counter`) at which each token came, and the request's summary.

        Raises:
            NotRemoteError: If the prompt was to be computed on the prefill node, and was not.
        """
        tokens = random.Random(seed)
        prompt = [tokens.randrange(3, 90) for _ in range(num_prompt_tokens)]
        fields = {"placement": placement, "bypass_prefix_cache": True}
        request = generate_request(_REQUEST_ID, prompt, num_output_tokens, **fields)
        times, summary = list[float](), PlacementSummary()
        for response in self.decode.Generate(request, timeout=_CALL_TIMEOUT_SECONDS):
            if response.HasField("tokens"):
                times.append(time.perf_counter())
            elif response.HasField("finished"):
                summary = response.finished.summary
        if placement.prefill_node_id and (summary.fallback_reason or not summary.kv_byte_count):
            cause = summary.fallback_reason or "no KV came"
            raise NotRemoteError(f"the prompt was not computed on {placement.prefill_node_id}: {cause}")
        return times, summary


@contextmanager
def shaped_cluster(link: ShapedLink, model: Path, decode: NodeTable, prefill: NodeTable | None) -> Iterator[Cluster]:
    """Run a cluster as long as the context lasts.

    The prefill node is at the far side of the link; None: there is none. The decode node has measured the link.

    Raises:
        TimeoutError: If the nodes do not register.
    """
    hosted = [HostedNode(decode, is_far=False)]
    if prefill is not None:
        hosted.append(HostedNode(prefill, is_far=True))
    with hosted_cluster(link, model, hosted) as (hosts, states):
        nodes = {state.node.role: state.node for state in states}
        decode_node = nodes[NODE_ROLE_DECODE]
        with grpc.insecure_channel(decode_node.address) as channel:
            yield Cluster(
                DecodeServiceStub(channel),  # type: ignore[no-untyped-call]
                hosts.router,
                decode_node.node_id,
                nodes[NODE_ROLE_PREFILL].node_id if prefill is not None else "",
            )
