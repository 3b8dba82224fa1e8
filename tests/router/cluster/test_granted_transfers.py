"""What a router grants with a placement, and to whom it tells keys: to nobody."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import grpc
import pytest

from baton.internal.v1 import router_service_pb2 as messages
from baton.internal.v1.kv_pb2 import TransferClaims, TransferGrant
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.rpc.status import error_info
from baton.security.access import LIFETIME_SECONDS, TransferGate, digest_of
from router.samples import DGX, MAC, description_to_proto
from router.test_servicer import HASHES, place_request, with_router

SPARE = replace(DGX, node_id="dgx-2", address="10.0.0.9:8020")
NODES = (MAC, DGX, SPARE)


async def registered(stub: RouterServiceStub, gates: Iterable[TransferGate | None]) -> list[object]:
    """Register the nodes with their keys, or without; they stay while the streams are kept."""
    calls = []
    for node, gate in zip(NODES, gates, strict=True):
        call = stub.Register()
        key = gate.key if gate else b""
        await call.write(messages.RegisterRequest(node=description_to_proto(node), transfer_key=key))
        await call.read()
        calls.append(call)
    return calls


def test_each_node_that_may_send_is_granted_what_was_placed() -> None:
    """The chosen one and those that could take over, for the request, its salt and its tokens."""

    async def client(stub: RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        mac, *senders = gates = [TransferGate() for _ in NODES]
        _kept = await registered(stub, gates)
        asked = place_request(salt_digest=digest_of("salt"), block_hashes=HASHES)

        placement = (await stub.Place(asked, timeout=20)).placement

        named = {each.prefill_node_id: each.transfer for each in (placement, *placement.alternatives)}
        assert named.keys() == {"dgx", "dgx-2"}
        claims = {"request_id": "r", "salt_digest": digest_of("salt"), "token_count": 8192, "blocks_digest": b""}
        for sender, (node_id, grant) in zip(senders, sorted(named.items()), strict=True):
            shown = mac.check_taken(grant, source_node_id=node_id, **claims)
            assert sender.check_asked(shown, destination_node_id="mac", **claims) == grant.answer_code
            ends_at = TransferClaims.FromString(grant.claims).expires_at.seconds
            assert ends_at == pytest.approx(time.time() + LIFETIME_SECONDS, abs=60)

    with_router(client)


@pytest.mark.parametrize("keyless", range(2), ids=["receiver", "sender"])
def test_nothing_is_granted_to_a_node_without_a_key(keyless: int) -> None:
    """One of a release that knows of none."""

    async def client(stub: RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        _kept = await registered(stub, [None if index == keyless else TransferGate() for index in range(3)])

        placement = (await stub.Place(place_request(), timeout=20)).placement

        grants = {each.prefill_node_id: each.transfer for each in (placement, *placement.alternatives)}
        assert grants["dgx"] == TransferGrant()
        assert (grants["dgx-2"] == TransferGrant()) == (keyless == 0)

    with_router(client)


def test_who_only_asks_is_granted_nothing_and_nobody_is_told_a_key() -> None:
    """Neither in a dry run nor in the list of nodes."""

    async def client(stub: RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        gates = [TransferGate() for _ in NODES]
        _kept = await registered(stub, gates)

        asked = await stub.Place(place_request(is_dry_run=True), timeout=20)
        listed = await stub.ListNodes(messages.ListNodesRequest(), timeout=20)

        assert asked.placement.transfer == TransferGrant()
        assert len(listed.nodes) == len(NODES)
        told = asked.SerializeToString() + listed.SerializeToString()
        assert [gate.key in told for gate in gates] == [False] * 3

    with_router(client)


def test_a_key_of_another_size_is_refused() -> None:
    """By the name of the field."""

    async def client(stub: RouterServiceStub, _channel: grpc.aio.Channel) -> None:
        call = stub.Register()
        await call.write(messages.RegisterRequest(node=description_to_proto(MAC), transfer_key=b"short"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

        info = error_info(caught.value)
        assert info is not None
        assert info.metadata["field"] == "transfer_key"

    with_router(client)
