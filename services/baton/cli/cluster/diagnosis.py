"""What `baton doctor` finds out: who answers, how fast links and copies are, what wire formats cost and lose."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import grpc
import numpy as np

from baton.agent.health import is_serving
from baton.capacity.kv_transfer import WireOption
from baton.capacity.placement import Candidate
from baton.errors import BatonError
from baton.internal.v1 import node_pb2, router_service_pb2, router_service_pb2_grpc
from baton.kv.stream import payload_crc32c
from baton.kv_transport.kv_services import KvStub
from baton.kv_transport.link_probe import measure_link
from baton.router.kv_compatibility import wire_options
from baton.router.proto import description_from_proto
from baton.rpc.channel import open_channel
from baton.security.tls import identity_towards
from baton.wire.node_roles import decodes, parts_words, prefills
from baton.wire.quantities import candidate_from_proto, seconds_from_duration

CALL_SECONDS = 5.0
PROBE_SECONDS = 15.0
PROBE_BYTES = 8 << 20
_COPY_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """One node, asked from the machine of the command."""

    node_id: str
    role: str
    """Which parts it may play: "prefill", "decode" or "any"."""
    address: str
    is_serving: bool
    """Whether its gRPC server answered."""
    fast_address: str = ""
    """Where its fast path is; empty: it offers none."""
    is_fast_reachable: bool = False
    """Whether something listens there."""
    bytes_per_second: float = 0.0
    """Rate of the link from it to this machine; 0: not measured (nodes that only decode send no prompt's KV)."""
    round_trip_seconds: float = 0.0
    """Round trip of an empty call; 0: not measured."""
    problem: str = ""
    """What went wrong; empty if nothing did."""
    is_reached_by_nodes: bool = False
    """Whether a node that decodes has measured the link from it: then it answers where it has to."""


@dataclass(frozen=True, slots=True)
class PairFinding:
    """A node that prefills and one that decodes, and what the router would do between them."""

    prefill_node_id: str
    decode_node_id: str
    is_measured: bool
    """Whether the decode node has measured the link."""
    bytes_per_second: float
    """Rate of the link; 0: only declared."""
    round_trip_seconds: float
    options: tuple[WireOption, ...] = ()
    """In what KV could travel, with what each format costs and loses."""
    remote: Candidate | None = None
    """What the router expects of a prompt that is computed remotely."""
    local: Candidate | None = None
    """And of one that the decode node computes itself."""
    problem: str = ""
    """Why they cannot work together; empty if they can."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

    router: str
    model_id: str
    num_prompt_tokens: int
    copy_bytes_per_second: float
    """Rate at which this machine copies memory, one thread."""
    checksum_bytes_per_second: float
    """Rate of CRC-32C, one thread."""
    nodes: tuple[NodeFinding, ...]
    pairs: tuple[PairFinding, ...]
    router_problem: str = ""
    """What went wrong with the router; empty if nothing did."""

    @property
    def is_healthy(self) -> bool:
        """Return whether there are pairs, and nothing has a problem."""
        return bool(self.pairs) and not any(
            [self.router_problem, *(node.problem for node in self.nodes), *(pair.problem for pair in self.pairs)]
        )


async def diagnose(
    stub: router_service_pb2_grpc.RouterServiceStub, router: str, *, num_prompt_tokens: int, max_tokens: int
) -> Diagnosis | None:
    """Ask the router and all nodes of its first model, None: it knows no nodes; raise AioRpcError if it is silent."""
    listed = await stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=CALL_SECONDS)
    if not listed.nodes:
        return None
    model_id = listed.nodes[0].node.model_id
    states = [state for state in listed.nodes if state.node.model_id == model_id]
    reached = {link.from_node_id for state in states for link in state.links}
    nodes = await asyncio.gather(*(_ask_node(state.node, is_reached=state.node.node_id in reached) for state in states))
    pairs = [
        await _ask_pair(stub, prefiller.node, decoder, num_prompt_tokens, max_tokens)
        for prefiller in states
        for decoder in states
        if prefills(prefiller.node) and decodes(decoder.node) and prefiller is not decoder
    ]
    copy_rate, checksum_rate = await asyncio.to_thread(_memory_rates)
    problem = await asyncio.to_thread(_certificate_problem, router)
    return Diagnosis(router, model_id, num_prompt_tokens, copy_rate, checksum_rate, tuple(nodes), tuple(pairs), problem)


async def _ask_node(node: node_pb2.NodeDescription, *, is_reached: bool) -> NodeFinding:
    """Ask a node from here; one that only other nodes reach, as policies of Kubernetes have it, is no problem."""
    role = parts_words(node.role)
    if not await is_serving(node.address, CALL_SECONDS):
        if is_reached:
            return NodeFinding(node.node_id, role, node.address, False, node.fast_address, is_reached_by_nodes=True)
        problem = (
            f"nothing answers at {node.address} from here; is that address reachable, or --advertise-address wrong?"
        )
        return NodeFinding(node.node_id, role, node.address, False, node.fast_address, problem=problem)
    is_fast_reachable = bool(node.fast_address) and await _is_listening(node.fast_address)
    problem = (
        "" if is_fast_reachable or not node.fast_address else f"its fast path at {node.fast_address} is not reachable"
    )
    rate = round_trip = 0.0
    if prefills(node):
        try:
            async with asyncio.timeout(PROBE_SECONDS), open_channel(node.address, is_dedicated=True) as channel:
                link = await measure_link(KvStub(channel), node.node_id, PROBE_BYTES)
            rate, round_trip = link.bytes_per_second, seconds_from_duration(link.round_trip)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            problem = f"the link from it could not be measured: {type(error).__name__}"
    certificate_problem = await asyncio.to_thread(_certificate_problem, node.address)
    return NodeFinding(
        *(node.node_id, role, node.address, True, node.fast_address, is_fast_reachable, rate, round_trip),
        problem=certificate_problem if is_reached else problem or certificate_problem,
        is_reached_by_nodes=is_reached,
    )


async def _ask_pair(
    stub: router_service_pb2_grpc.RouterServiceStub,
    prefiller: node_pb2.NodeDescription,
    decoder: router_service_pb2.NodeState,
    num_prompt_tokens: int,
    max_tokens: int,
) -> PairFinding:
    link = next((link for link in decoder.links if link.from_node_id == prefiller.node_id), None)
    request = router_service_pb2.PlaceRequest(
        request_id=f"doctor-{uuid.uuid4()}",
        model_id=decoder.node.model_id,
        prompt_token_count=num_prompt_tokens,
        max_token_count=max_tokens,
        is_dry_run=True,
        pins=[
            router_service_pb2.PlacementPin(decode_node_id=decoder.node.node_id, prefill_node_id=node_id)
            for node_id in (prefiller.node_id, "")
        ],
    )
    problem, candidates = "", []
    try:
        answer = await stub.Place(request, timeout=CALL_SECONDS)
        candidates = [candidate_from_proto(message) for message in answer.candidates]
    except grpc.aio.AioRpcError as error:
        problem = str(error.details())
    remote = next((candidate for candidate in candidates if not candidate.is_local), None)
    return PairFinding(
        prefill_node_id=prefiller.node_id,
        decode_node_id=decoder.node.node_id,
        is_measured=link is not None,
        bytes_per_second=link.bytes_per_second if link else 0.0,
        round_trip_seconds=seconds_from_duration(link.round_trip) if link else 0.0,
        options=_options(prefiller, decoder.node),
        remote=remote,
        local=next((candidate for candidate in candidates if candidate.is_local), None),
        problem=problem or (remote.infeasible_reason if remote else "the router has no such candidate"),
    )


def _options(prefiller: node_pb2.NodeDescription, decoder: node_pb2.NodeDescription) -> tuple[WireOption, ...]:
    try:
        return wire_options(description_from_proto(prefiller), description_from_proto(decoder))
    except BatonError:  # a node of another version: the router's own words say more
        return ()


async def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CALL_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def _certificate_problem(address: str) -> str:
    """Return that the certificate at host:port ends soon, after three quarters of its life; empty: none is seen."""
    identity, (host, _, port) = identity_towards(address), address.rpartition(":")
    if identity is None:
        return ""
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), CALL_SECONDS) as plain,
            identity.client_context().wrap_socket(plain, server_hostname=identity.server_name) as secured,
        ):
            shown = secured.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not believed: {error.verify_message}"
    except (OSError, ValueError):
        return ""  # that it does not answer is said elsewhere
    begin, end = (ssl.cert_time_to_seconds(str(shown[field])) for field in ("notBefore", "notAfter"))
    left = end - time.time()
    remedy = "nobody has renewed it: its log says why (renewal_failed), or it is yours to replace"
    return f"its certificate ends in {left / 3600:.1f} h, and {remedy}" if left < (end - begin) / 4 else ""


def _memory_rates() -> Sequence[float]:
    source, target = np.ones(_COPY_BYTES, np.uint8), np.ones(_COPY_BYTES, np.uint8)  # touched: no page faults count
    started = time.perf_counter()
    np.copyto(target, source)
    copied = time.perf_counter()
    payload_crc32c(target.data, b"")
    return _COPY_BYTES / (copied - started), _COPY_BYTES / (time.perf_counter() - copied)
