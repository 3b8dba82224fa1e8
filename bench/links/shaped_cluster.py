"""Real processes on two hosts with a shaped link between them: the prefill node there, all others here."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from baton.v1 import router_service_pb2
from baton.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.v1.generation_pb2 import PlacementSummary, SamplingParameters
from baton.v1.node_pb2 import NODE_ROLE_DECODE, NODE_ROLE_PREFILL, NodeDescription
from baton.v1.router_service_pb2 import Placement
from baton.v1.router_service_pb2_grpc import RouterServiceStub
from bench.links.shaped_link import FAR_ADDRESS, NEAR_ADDRESS, ShapedLink
from bench.processes import running_server

MODEL = "model"
"""Served name."""
START_TIMEOUT_SECONDS = 120.0
_CALL_TIMEOUT_SECONDS = 300.0

_ROUTER = f"{NEAR_ADDRESS}:18910"
_CACHE_INDEX = f"{NEAR_ADDRESS}:18911"


class NotRemoteError(RuntimeError):
    """A prompt that the prefill node should have computed was computed elsewhere."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node."""

    engine: str
    """"torch", "mlx" or "mock"."""
    flags: tuple[str, ...] = ()
    """Further flags of `baton serve`."""
    measures_links: bool = True
    """Whether it probes the link from the prefill node, if it decodes."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Calls into a running cluster."""

    decode: DecodeServiceStub
    """The decode node."""
    router: RouterServiceStub
    """The router."""
    decode_node_id: str
    """Its node's id."""
    prefill_node_id: str
    """Id of the prefill node; empty: there is none."""

    def place(self, num_prompt_tokens: int, num_output_tokens: int, *, is_remote: bool) -> Placement:
        """Return where the router has a prompt computed, with or without the prefill node."""
        prefill_node_id = self.prefill_node_id if is_remote else ""
        pin = router_service_pb2.PlacementPin(decode_node_id=self.decode_node_id, prefill_node_id=prefill_node_id)
        request = router_service_pb2.PlaceRequest(
            request_id="bench",
            model_id=MODEL,
            prompt_token_count=num_prompt_tokens,
            max_token_count=num_output_tokens,
            bypass_prefix_cache=True,
            pins=[pin],
        )
        response: router_service_pb2.PlaceResponse = self.router.Place(request, timeout=_CALL_TIMEOUT_SECONDS)
        return response.placement

    def generate(
        self,
        placement: Placement,
        num_prompt_tokens: int,
        num_output_tokens: int,
        seed: int,
        *,
        is_cached: bool = False,
    ) -> tuple[list[float], PlacementSummary]:
        """Generate after a prompt of random tokens, which is kept in prefix caches, and taken from them, on demand.

        Returns:
            Seconds (`time.perf_counter`) at which each token came, and the request's summary.

        Raises:
            NotRemoteError: If the prompt was to be computed on the prefill node, and was not.
        """
        tokens = random.Random(seed)
        request = DecodeServiceGenerateRequest(
            request_id=f"bench-{seed}-{time.time_ns()}",
            attempt=1,
            model_id=MODEL,
            prompt_token_ids=[tokens.randrange(3, 90) for _ in range(num_prompt_tokens)],
            sampling=SamplingParameters(temperature=0, ignore_eos=True, max_token_count=num_output_tokens),
            placement=placement,
            bypass_prefix_cache=not is_cached,
        )
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
def shaped_cluster(
    link: ShapedLink,
    model: Path,
    decode: NodePlan,
    prefill: NodePlan | None,
    *,
    flags: Sequence[str] = (),
    prefill_niceness: int = 0,
) -> Iterator[Cluster]:
    """Run a cluster as long as the context lasts.

    Args:
        link: To the host of the prefill node.
        model: Folder of the model; for mock engines its tokenizer and vocabulary.
        decode: Node on this side; where it measures links it has measured the one from the prefill node.
        prefill: Node on the far side; None: none.
        flags: Of both nodes.
        prefill_niceness: 0 to 19: how much the prefill node leaves to the others of the cores that they share here.

    Raises:
        TimeoutError: If the nodes do not register.
    """
    join = ("--router-address", _ROUTER, "--cache-index-address", _CACHE_INDEX, "--model-dir", str(model))
    common = (*join, "--model-name", MODEL, *flags)
    near = ("--engine", decode.engine, "--host", NEAR_ADDRESS, "--port", "18930", *common, *decode.flags)
    router = ("router", "--host", NEAR_ADDRESS, "--port", "18910", "--cache-index-address", _CACHE_INDEX)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(_process(router, logs))
        stack.enter_context(_process(("cache-index", "--host", NEAR_ADDRESS, "--port", "18911"), logs))
        if prefill is not None:
            far = ("--engine", prefill.engine, "--host", FAR_ADDRESS, "--port", "18920", *common, *prefill.flags)
            stack.enter_context(_process(("prefill", *far), logs, link, prefill_niceness))
        stack.enter_context(_process(("decode", *near), logs))
        router_channel = stack.enter_context(grpc.insecure_channel(_ROUTER))
        stub = RouterServiceStub(router_channel)  # type: ignore[no-untyped-call]
        num_nodes = 1 if prefill is None else 2
        nodes = _wait_for_nodes(stub, num_nodes, num_nodes - 1 if decode.measures_links else 0, logs)
        decode_node = nodes[NODE_ROLE_DECODE]
        channel = stack.enter_context(grpc.insecure_channel(decode_node.address))
        yield Cluster(
            DecodeServiceStub(channel),  # type: ignore[no-untyped-call]
            stub,
            decode_node.node_id,
            nodes[NODE_ROLE_PREFILL].node_id if prefill is not None else "",
        )


@contextmanager
def _process(arguments: Sequence[str], logs: Path, link: ShapedLink | None = None, niceness: int = 0) -> Iterator[None]:
    command = ["nice", "-n", str(niceness), sys.executable, "-m", "baton.cli", "serve", *arguments]
    command = link.far_command(command) if link else command
    with running_server(command, logs / f"{arguments[0]}.log", {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}):
        yield


def _wait_for_nodes(stub: RouterServiceStub, num_nodes: int, num_links: int, logs: Path) -> dict[int, NodeDescription]:
    """Return the nodes by role, once all are registered and the decode node has measured its links."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while (seconds := deadline - time.monotonic()) > 0:
        try:
            response = stub.ListNodes(router_service_pb2.ListNodesRequest(), wait_for_ready=True, timeout=seconds)
        except grpc.RpcError:  # the router has just begun, or never does: the deadline decides
            continue
        states = {state.node.role: state for state in response.nodes}
        if len(states) == num_nodes and len(states[NODE_ROLE_DECODE].links) >= num_links:
            return {role: state.node for role, state in states.items()}
        time.sleep(0.2)
    tails = "\n".join(path.read_text()[-2000:] for path in sorted(logs.iterdir()))
    raise TimeoutError(f"the nodes did not register within {START_TIMEOUT_SECONDS} seconds\n{tails}")
