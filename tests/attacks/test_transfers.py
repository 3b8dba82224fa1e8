"""Item S6: KV asked for by a member that no router has sent, over gRPC, the fast path and shared memory.

A member's certificate was all that a node asked for: any node got any tenant's KV whose tokens or hashes it guessed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from attacks.deployment import CALL_SECONDS, MODEL, READY_SECONDS, Deployment
from baton.errors import ForbiddenError
from baton.internal.v1.block_service_pb2 import PullBlocksRequest
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.kv_pb2 import TransferClaims, TransferGrant
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.prefill_service_pb2 import PrefillRequest
from baton.internal.v1.router_service_pb2 import Placement, PlacementPin, PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.kv.hashing import block_hashes, join_hashes, root_hash
from baton.kv.stream import StagingPool
from baton.kv_transport.fast_channel import FastChannel
from baton.kv_transport.kv_services import BlockStub, KvStub
from baton.security.access import MAX_USES, sign_grant
from baton.security.tls import TlsIdentity, secured_by
from baton.shm.lender import SEGMENT_BYTES, Lender
from baton.v1.generation_pb2 import SamplingParameters

SENDER, RECEIVER = "mac-1", "mac-2"
PROMPT = tuple(range(3, 60))
KV = "KV"
"""What an attacker gets where it is not refused."""
DENIED = grpc.StatusCode.PERMISSION_DENIED
TRANSPORTS = ("grpc", "fast", "shared")
_GREEDY = SamplingParameters(temperature=0, ignore_eos=True, max_token_count=2)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Run a router and two nodes that decode and prefill; the first one has the prompt in its prefix cache."""
    folder: Path = tmp_path_factory.mktemp("transfers")
    with Deployment(folder, {"router": "router", SENDER: "worker", RECEIVER: "worker"}) as running:
        for name in (SENDER, RECEIVER):
            running.wait_for_node(name)
        assert reasons_of(running, SENDER, "warm", place(running, "warm", SENDER, "")) == []
        yield running


def place(deployment: Deployment, name: str, decode: str, prefill: str) -> Placement:
    """Return where the router has a prompt computed, as a gateway learns it."""
    pins = [PlacementPin(decode_node_id=decode, prefill_node_id=prefill)]
    size = {"prompt_token_count": len(PROMPT), "max_token_count": 2}
    asked = PlaceRequest(request_id=name, model_id=MODEL, pins=pins, **size)

    async def ask(channel: grpc.aio.Channel) -> object:
        return (await RouterServiceStub(channel).Place(asked, timeout=CALL_SECONDS)).placement  # type: ignore[no-untyped-call]

    placement = deployment.attack(deployment.operator, "router", ask)
    assert isinstance(placement, Placement)
    return placement


def reasons_of(deployment: Deployment, node: str, name: str, placement: Placement) -> list[str]:
    """Have a prompt answered; return why its KV did not come from where it was to come from."""
    request = DecodeServiceGenerateRequest(
        request_id=name, attempt=1, model_id=MODEL, prompt_token_ids=PROMPT, sampling=_GREEDY, placement=placement
    )

    async def ask(channel: grpc.aio.Channel) -> object:
        call = DecodeServiceStub(channel).Generate(request, timeout=READY_SECONDS)  # type: ignore[no-untyped-call]
        *_, last = [response async for response in call]
        return list(last.finished.summary.kv_break_reasons)

    reasons = deployment.attack(deployment.operator, node, ask)
    assert isinstance(reasons, list), reasons
    return reasons


def prefill_of(sender: NodeDescription, name: str, grant: TransferGrant, **changes: Any) -> PrefillRequest:
    """Return what a decode node asks a prefill node for."""
    usual = {"attempt": 1, "token_ids": PROMPT, "sampling": _GREEDY, "expected_layout": sender.kv_layout}
    asked: dict[str, Any] = {**usual, **changes}
    return PrefillRequest(request_id=name, transfer=grant, **asked)


def pull_of(sender: NodeDescription, name: str, grant: TransferGrant) -> PullBlocksRequest:
    """Return what a decode node asks of another's prefix cache: a text that it guesses."""
    root, num_tokens = root_hash(sender.kv_layout.model_revision_digest, 16), sender.block_token_count
    return PullBlocksRequest(
        request_id=name,
        attempt=1,
        transfer=grant,
        block_hashes=join_hashes(block_hashes(root, PROMPT, num_tokens)),
        block_token_count=num_tokens,
        expected_layout=sender.kv_layout,
    )


def ask(
    deployment: Deployment, who: TlsIdentity, request: PrefillRequest | PullBlocksRequest, transport: str = "grpc"
) -> object:
    """Ask the sender; return KV where it begins to answer, else the code of its refusal."""

    async def by_grpc(channel: grpc.aio.Channel) -> object:
        if isinstance(request, PullBlocksRequest):
            call = BlockStub(channel).PullBlocks(request, timeout=CALL_SECONDS)
        else:
            call = KvStub(channel).Prefill(request, timeout=CALL_SECONDS)
        await anext(aiter(call))
        return KV

    if transport == "grpc" or isinstance(request, PullBlocksRequest):
        return deployment.attack(who, SENDER, by_grpc)
    address = deployment.nodes()[SENDER].node.fast_address
    return asyncio.run(asyncio.wait_for(_ask_fast(who, address, request, is_lent=transport == "shared"), READY_SECONDS))


async def _ask_fast(who: TlsIdentity, address: str, request: PrefillRequest, *, is_lent: bool) -> object:
    lender = Lender(SEGMENT_BYTES)
    lender.start()
    loan = lender.lend()
    if is_lent:
        request.shared_memory.address, request.shared_memory.token = loan.address, loan.token
    with secured_by(who):
        channel = FastChannel(address, StagingPool())
    try:
        message = await anext(await channel.prefill(request, loan))
        assert getattr(message, "uses_shared_memory", None) == is_lent
        return KV
    except ForbiddenError:
        assert loan.token in lender._offers, "a sender that refuses takes no memory"
        return DENIED
    finally:
        loan.close()
        lender.close()
        channel.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kv_goes_to_nobody_whom_no_router_has_sent(deployment: Deployment, transport: str) -> None:
    """Without a grant, with one of the thief's own making, with another's, and with one for another request."""
    sender, thief = deployment.nodes()[SENDER].node, deployment.certificate("mac-3")
    receiver = deployment.certificate(RECEIVER)
    name = f"prefill-{transport}"
    grant = place(deployment, name, RECEIVER, SENDER).transfer
    claims = TransferClaims.FromString(grant.claims)
    claims.destination_node_id = "mac-3"
    forged = sign_grant(claims, bytes(32), bytes(32))
    renamed = TransferGrant(claims=claims.SerializeToString(), ask_code=grant.ask_code)

    stolen = [
        ask(deployment, thief, prefill_of(sender, name, shown), transport)
        for shown in (TransferGrant(), forged, renamed, grant)
    ]
    others = [
        ask(deployment, receiver, prefill_of(sender, "other", grant), transport),
        ask(deployment, receiver, prefill_of(sender, name, grant, cache_salt="of another tenant"), transport),
        ask(deployment, receiver, prefill_of(sender, name, grant, token_ids=(*PROMPT, 3)), transport),
    ]
    attempts = range(1, MAX_USES + 2)  # each takes over from the one before, which may still run
    own = [ask(deployment, receiver, prefill_of(sender, name, grant, attempt=each), transport) for each in attempts]

    assert stolen == [DENIED] * 4
    assert others == [DENIED] * 3
    assert own == [KV] * MAX_USES + [DENIED]


def test_cached_blocks_go_to_nobody_whom_no_router_has_sent(deployment: Deployment) -> None:
    """A prompt cannot be guessed by asking a neighbour for the hashes of its blocks, nor by a grant of a prefill."""
    sender, receiver = deployment.nodes()[SENDER].node, deployment.certificate(RECEIVER)
    grant = place(deployment, "pull", RECEIVER, SENDER).transfer

    answers = [
        ask(deployment, who, pull_of(sender, "pull", shown))
        for who in (deployment.certificate("mac-3"), receiver)
        for shown in (TransferGrant(), grant)
    ]

    assert answers == [DENIED] * 4


def test_a_node_takes_kv_from_nobody_whom_no_router_has_named(deployment: Deployment) -> None:
    """It computes the prompt itself where a placement has no grant, a forged one, or that of another request."""
    honest = place(deployment, "take", RECEIVER, SENDER)
    assert reasons_of(deployment, RECEIVER, "take", honest) == []

    bare, copied, resigned = Placement(), Placement(), Placement()
    for each in (bare, copied, resigned):
        each.CopyFrom(honest)
    bare.ClearField("transfer")
    resigned.transfer.CopyFrom(sign_grant(TransferClaims.FromString(honest.transfer.claims), bytes(32), bytes(32)))
    reasons = [
        reasons_of(deployment, RECEIVER, name, placement)
        for name, placement in (("take", bare), ("take", resigned), ("other", copied))
    ]

    assert reasons == [[f"TRANSFER_NOT_GRANTED:{claim}"] for claim in ("claims", "claims", "request_id")]
