"""RouterService over a real channel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.cache_index.server import build_server
from baton.cache_index.settings import CacheIndexSettings
from baton.internal.v1 import cache_index_service_pb2, cache_index_service_pb2_grpc, node_pb2
from baton.internal.v1 import router_service_pb2 as messages
from baton.internal.v1 import router_service_pb2_grpc as service
from baton.kv.hashing import Adapter
from baton.kv.kv_format import KvDtype
from baton.router.nodes import NodeDescription
from baton.router.proto import description_from_proto
from baton.router.server import running_router
from baton.router.servicer import NodeRegistrations, RegistrationSession
from baton.router.settings import RouterSettings
from baton.router.state import RouterState
from baton.rpc.channel import open_channel
from baton.rpc.status import error_info
from baton.v1 import generation_pb2
from router.samples import DGX, LAYOUT, MAC, MODEL, description_to_proto

TIMEOUT_SECONDS = 60.0
PATIENT = {"warm_up_seconds": 0.0, "silent_seconds": 600.0, "assumed_ttl_seconds": 600.0}
"""Nodes of these tests report nothing of themselves, and a busy machine may take its time."""
HASHES = bytes(range(64))


def with_router(
    client: Callable[[service.RouterServiceStub, grpc.aio.Channel], Awaitable[None]], **settings: object
) -> None:
    """Run a client against a router on a free port."""

    async def run() -> None:
        router_settings = RouterSettings(port=0, drain_seconds=0.2, **(PATIENT | settings))  # type: ignore[arg-type]
        async with running_router(router_settings) as server:
            channel = open_channel(f"127.0.0.1:{server.port}")
            try:
                await client(service.RouterServiceStub(channel), channel)
            finally:
                await channel.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


async def register(stub: service.RouterServiceStub, description: NodeDescription) -> Any:
    """Register a node and return its stream once greeted; the node leaves when the stream is dropped."""
    call = stub.Register()
    await call.write(messages.RegisterRequest(node=description_to_proto(description)))
    greeting = await call.read()
    assert greeting.registered.report_interval.ToMilliseconds() == 500
    return call


async def read_peers(call: Any) -> list[str]:
    """Return the ids in the next peers notice."""
    notice = await call.read()
    assert notice.HasField("peers")
    return [peer.node_id for peer in notice.peers.nodes]


def place_request(**changed: Any) -> messages.PlaceRequest:
    """Return the seed's request."""
    fields: dict[str, Any] = {
        "request_id": "r",
        "model_id": MODEL,
        "prompt_token_count": 8192,
        "max_token_count": 32,
    }
    return messages.PlaceRequest(**(fields | changed))


async def list_until(stub: service.RouterServiceStub, is_wanted: Callable[[messages.ListNodesResponse], bool]) -> None:
    """List nodes until the answer is as wanted; reports and listings travel on different calls."""
    while not is_wanted(await stub.ListNodes(messages.ListNodesRequest(), timeout=20)):
        pass


def test_a_pair_is_placed_with_every_term() -> None:
    """The DGX prefills for the Mac; the response has the address, the group size, the choice and its terms."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        _dgx = await register(stub, DGX)

        response = await stub.Place(place_request(), timeout=20)

        placement = response.placement
        assert (placement.decode_node_id, placement.decode_address) == ("mac", MAC.address)
        assert (placement.prefill_node_id, placement.layers_per_frame) == ("dgx", 1)
        assert len(placement.placement_id) == 32
        assert [candidate.prefill_node_id for candidate in response.candidates] == ["dgx"]
        estimate = placement.estimate
        assert estimate == response.candidates[0].estimate
        assert estimate.total_seconds == pytest.approx(
            estimate.start_seconds + estimate.decode_seconds + estimate.imposed_seconds
        )
        assert response.candidates[0].kv_byte_count == 8192 * 128 * 1024
        assert response.candidates[0].is_link_declared

    with_router(client)


def test_who_only_asks_is_shown_every_candidate() -> None:
    """A dry run lists what was not chosen, too; a placement names the choice alone."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac, _dgx = await register(stub, MAC), await register(stub, DGX)

        asked = await stub.Place(place_request(is_dry_run=True), timeout=20)
        placed = await stub.Place(place_request(), timeout=20)

        assert [candidate.prefill_node_id for candidate in asked.candidates] == ["dgx", ""]
        assert list(placed.candidates) == [asked.candidates[0]]

    with_router(client)


def test_a_placement_names_the_prefill_nodes_that_could_take_over() -> None:
    """At most two, cheapest first, for the same decode node; each with its terms and its frames."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        _others = [await register(stub, replace(DGX, node_id=f"dgx-{number}")) for number in range(4)]

        response = await stub.Place(place_request(), timeout=20)

        placement = response.placement
        assert placement.prefill_node_id == "dgx-0"
        assert [other.prefill_node_id for other in placement.alternatives] == ["dgx-1", "dgx-2"]
        assert all(other.estimate == placement.estimate for other in placement.alternatives)
        assert all(other.layers_per_frame == placement.layers_per_frame for other in placement.alternatives)

    with_router(client)


def test_a_pinned_placement_has_no_alternative() -> None:
    """Nobody but the pinned pair may serve the request."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        _others = [await register(stub, replace(DGX, node_id=f"dgx-{number}")) for number in range(2)]
        pin = messages.PlacementPin(decode_node_id="mac", prefill_node_id="dgx-1")

        response = await stub.Place(place_request(pins=[pin]), timeout=20)

        assert not response.placement.alternatives

    with_router(client)


def test_a_placement_is_explained_with_its_outcome() -> None:
    """By the client's name of the request; another one is NOT_FOUND."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        mac = await register(stub, MAC)
        placement = (await stub.Place(place_request(request_id="abc.0123abcd"), timeout=20)).placement
        summary = generation_pb2.PlacementSummary(
            placement_id=placement.placement_id,
            decode_node_id="mac",
            prefill_node_id="mac",
            prefill_duration=Duration(seconds=3),
            completion_token_count=1,
        )
        await mac.write(messages.RegisterRequest(outcomes=messages.Outcomes(outcomes=[summary])))
        answer = messages.ExplainResponse(records=[messages.PlacementRecord()])
        while not answer.records[0].HasField("outcome"):
            answer = await stub.Explain(messages.ExplainRequest(request_id="abc"), timeout=20)

        (record,) = answer.records
        measured = {pair.term: pair.measured_seconds for pair in record.terms}
        assert record.choice.estimate == placement.estimate
        assert (measured["prefill"], measured["total"]) == (3.0, 3.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Explain(messages.ExplainRequest(request_id="other"), timeout=20)
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert info is not None
        assert info.reason == "REQUEST_NOT_FOUND"

    with_router(client)


def test_decode_nodes_are_told_when_prefill_nodes_come_and_go() -> None:
    """Peers are sent on registration and on every change, to decode nodes of the same model alone."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        mac = await register(stub, MAC)
        assert await read_peers(mac) == []
        _other = await register(stub, replace(DGX, node_id="qwen", model_id="qwen"))
        dgx = await register(stub, DGX)
        assert await read_peers(mac) == ["dgx"]
        dgx.cancel()
        assert await read_peers(mac) == []

    with_router(client)


def test_decode_nodes_are_told_of_each_other() -> None:
    """For their prefix caches; with what each serves, and not of themselves."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        mac = await register(stub, MAC)
        assert await read_peers(mac) == []
        mini = await register(stub, replace(MAC, node_id="mini", address="127.0.0.1:7103"))

        assert await read_peers(mini) == ["mac"]
        (peer,) = (await mac.read()).peers.nodes
        assert (peer.node_id, peer.address, peer.role) == ("mini", "127.0.0.1:7103", node_pb2.NODE_ROLE_DECODE)

    with_router(client)


def test_workers_are_told_of_each_other_and_placed_in_both_parts() -> None:
    """As decode nodes are; and each is a candidate to prefill for the other."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        mac = await register(stub, replace(MAC, role="worker"))
        assert await read_peers(mac) == []
        dgx = await register(stub, replace(DGX, role="worker"))

        assert await read_peers(dgx) == ["mac"]
        (peer,) = (await mac.read()).peers.nodes
        assert (peer.node_id, peer.role) == ("dgx", node_pb2.NODE_ROLE_WORKER)
        answer = await stub.Place(place_request(is_dry_run=True), timeout=20)
        pairs = {(each.decode_node_id, each.prefill_node_id) for each in answer.candidates}
        assert pairs == {("mac", ""), ("mac", "dgx"), ("dgx", ""), ("dgx", "mac")}

    with_router(client)


def test_a_process_that_takes_a_free_name_ends_the_old_stream() -> None:
    """The old process is told NODE_SUPERSEDED; the new one is a peer under its epoch."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        old = await register(stub, DGX)
        await old.write(messages.RegisterRequest(load=node_pb2.LoadReport(is_draining=True)))
        await list_until(stub, lambda listing: listing.nodes[0].load.is_draining)
        new = await register(stub, replace(DGX, epoch=2, address="127.0.0.1:7200"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await old.read()
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert info is not None
        assert info.reason == "NODE_SUPERSEDED"
        listing = await stub.ListNodes(messages.ListNodesRequest(), timeout=20)
        assert [(state.node.node_id, state.node.epoch) for state in listing.nodes] == [("dgx", 2)]
        new.cancel()

    with_router(client)


def test_a_name_that_is_in_use_is_refused() -> None:
    """The process that has it stays registered, whatever the other's epoch."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        owner = await register(stub, replace(DGX, epoch=2))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await register(stub, replace(DGX, epoch=time.time_ns()))
        assert caught.value.code() is grpc.StatusCode.ABORTED
        listing = await stub.ListNodes(messages.ListNodesRequest(), timeout=20)
        assert [state.node.epoch for state in listing.nodes] == [2]
        owner.cancel()

    with_router(client)


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"node_id": "No Spaces"}, "node.node_id"),
        ({"epoch": 0}, "node.epoch"),
        ({"epoch": 2**63 - 1}, "node.epoch"),
        ({"role": 0}, "node.role"),
        ({"address": ""}, "node.address"),
        ({"block_token_count": 0}, "node.block_token_count"),
        ({"model_shape": node_pb2.ModelShape()}, "node.model_shape.layer_count"),
        ({"profile": node_pb2.NodeProfile()}, "node.profile.prefill_flops"),
    ],
)
def test_bad_descriptions_are_refused_by_field(changed: dict[str, Any], field: str) -> None:
    """INVALID_ARGUMENT names the field."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        message = description_to_proto(MAC)
        for name, value in changed.items():
            if name in ("model_shape", "profile"):
                getattr(message, name).CopyFrom(value)
            else:
                setattr(message, name, value)
        call = stub.Register(iter([messages.RegisterRequest(node=message)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert info is not None
        assert info.metadata["field"] == field

    with_router(client)


def test_two_models_of_one_name_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Answers depend on which of them is asked."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        _dgx = await register(stub, DGX)
        assert "models_differ" not in caplog.text
        other = replace(MAC, node_id="other", layout=replace(MAC.layout, model_revision_digest="b" * 32))
        _other = await register(stub, other)
        assert f"models_differ model={MODEL} nodes=other,dgx" in caplog.text.replace("other,mac", "other,dgx")

    with_router(client)


def test_reports_before_the_description_are_refused() -> None:
    """The first message must be the node."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Register(iter([messages.RegisterRequest(load=node_pb2.LoadReport())]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_router(client)


@pytest.mark.parametrize(
    ("changed", "code", "reason"),
    [
        ({"model_id": "nobody"}, grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND"),
        ({"prompt_token_count": 0}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ({"max_token_count": 0}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ({"request_id": ""}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ({"block_hashes": b"odd"}, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD"),
        ({"prompt_token_count": 200_000}, grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY"),
        ({"excluded_node_ids": ["mac"]}, grpc.StatusCode.UNAVAILABLE, "NO_NODE"),
    ],
)
def test_requests_that_cannot_be_placed_say_why(changed: dict[str, Any], code: grpc.StatusCode, reason: str) -> None:
    """Each cause has its status and reason."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Place(place_request(**changed), timeout=20)
        info = error_info(caught.value)
        assert caught.value.code() is code
        assert info is not None
        assert info.reason == reason

    with_router(client)


def test_a_model_without_decode_nodes_is_one_that_nobody_serves() -> None:
    """A router that has just started may know a prefill node first: gateways wait as for one that knows no node."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _dgx = await register(stub, DGX)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Place(place_request(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    with_router(client)


def test_unlike_caches_are_refused_by_field() -> None:
    """A prefill node of another dtype is infeasible, with the field's name; the prompt is computed at home."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        _other = await register(stub, replace(DGX, layout=replace(LAYOUT, dtype=KvDtype.FLOAT32)))
        response = await stub.Place(place_request(is_dry_run=True), timeout=20)
        assert response.placement.prefill_node_id == ""
        assert "dtype" in response.candidates[1].infeasible_reason

    with_router(client)


def test_load_links_and_outcomes_are_listed() -> None:
    """What nodes report comes back from ListNodes, the profile corrected."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        mac, dgx = await register(stub, MAC), await register(stub, DGX)
        placement = (await stub.Place(place_request(), timeout=20)).placement
        queued = node_pb2.QueuedPrompt(placement_id="p", done_token_count=3, remaining_token_count=4)
        load = node_pb2.LoadReport(
            running_request_count=2,
            free_block_count=5,
            step_count=9,
            queued_prompts=[queued],
            landing_bytes_per_second=1e9,
            landing_byte_count=7,
            decoding_request_count=1,
            export_request_count=1,
            reading_bytes_per_second=4e9,
        )
        link = node_pb2.LinkMeasurement(from_node_id="dgx", bytes_per_second=2e9)
        outcome = generation_pb2.PlacementSummary(
            placement_id=placement.placement_id,
            decode_node_id="mac",
            prefill_node_id="dgx",
            prefill_duration=Duration(seconds=2),
            decode_duration=Duration(seconds=1),
            completion_token_count=11,
        )
        for report in ({"load": load}, {"link": link}, {"outcomes": messages.Outcomes(outcomes=[outcome])}):
            await mac.write(messages.RegisterRequest(**report))  # type: ignore[arg-type]
        await list_until(stub, lambda listing: listing.nodes[1].decode_calibration > 0)
        listing = await stub.ListNodes(messages.ListNodesRequest(), timeout=20)
        shown_dgx, shown_mac = listing.nodes
        assert shown_mac.load == load
        assert [(item.from_node_id, item.bytes_per_second) for item in shown_mac.links] == [("dgx", 2e9)]
        assert shown_dgx.prefill_calibration > 1.0
        assert shown_dgx.node.profile.prefill_flops < DGX.profile.prefill_flops
        assert not dgx.done()

    with_router(client)


def test_the_listing_says_which_node_takes_no_requests_and_why() -> None:
    """In words, with the age of its last report."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac, dgx = await register(stub, MAC), await register(stub, DGX)
        await dgx.write(messages.RegisterRequest(load=node_pb2.LoadReport(is_draining=True)))
        await list_until(stub, lambda listing: listing.nodes[0].unusable_reason != "")
        shown_dgx, shown_mac = (await stub.ListNodes(messages.ListNodesRequest(), timeout=20)).nodes
        assert (shown_dgx.unusable_reason, shown_mac.unusable_reason) == ("draining", "")
        assert 0 < shown_mac.report_age.ToNanoseconds() < 60e9

    with_router(client)


def test_a_dry_run_leaves_no_trace() -> None:
    """`baton plan` does not fill the nodes with requests that never come."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        first = await stub.Place(place_request(is_dry_run=True), timeout=20)
        second = await stub.Place(place_request(), timeout=20)
        third = await stub.Place(place_request(), timeout=20)
        assert second.placement.estimate == first.placement.estimate
        assert third.placement.estimate.queue_seconds > second.placement.estimate.queue_seconds

    with_router(client)


def test_prefixes_come_from_the_cache_index() -> None:
    """A published prefix is counted unless the request bypasses it; with the index gone, placement goes on."""

    async def run() -> None:
        index = build_server(CacheIndexSettings(port=0))
        index_address = f"127.0.0.1:{await index.start()}"
        index_channel = open_channel(index_address)
        lookup: dict[str, Any] = {"cache_index_address": index_address, "cache_lookup_seconds": 5}
        settings = RouterSettings(port=0, drain_seconds=0.2, **lookup, **PATIENT)
        publish = cache_index_service_pb2_grpc.CacheIndexServiceStub(index_channel).Publish()
        snapshot = cache_index_service_pb2.BlockSnapshot(node_id="mac", block_hashes=HASHES[:48])
        await publish.write(cache_index_service_pb2.PublishRequest(snapshot=snapshot))
        async with running_router(settings) as server:
            channel = open_channel(f"127.0.0.1:{server.port}")
            stub = service.RouterServiceStub(channel)
            mac = await register(stub, MAC)

            async def cached(**changed: Any) -> int:
                response = await stub.Place(place_request(block_hashes=HASHES, is_dry_run=True, **changed), timeout=20)
                return int(response.candidates[0].decode_cached_token_count)

            while await cached() != 48:
                pass
            assert await cached(bypass_prefix_cache=True) == 0
            publish.cancel()
            await index_channel.close()
            await index.drain(0)
            assert await cached() == 0
            mac.cancel()
            await channel.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def test_a_prefix_below_a_device_goes_by_the_rates_that_the_node_reports() -> None:
    """It counts where reading it is quicker than computing it, and is said to come back."""

    async def run() -> None:
        index = build_server(CacheIndexSettings(port=0))
        index_address = f"127.0.0.1:{await index.start()}"
        index_channel = open_channel(index_address)
        settings = RouterSettings(
            port=0, drain_seconds=0.2, cache_index_address=index_address, cache_lookup_seconds=5, **PATIENT
        )
        publish = cache_index_service_pb2_grpc.CacheIndexServiceStub(index_channel).Publish()
        on_disk = cache_index_service_pb2.TierEvents(
            tier=cache_index_service_pb2.BLOCK_TIER_DISK, stored_block_hashes=HASHES
        )
        for report in (
            cache_index_service_pb2.PublishRequest(snapshot=cache_index_service_pb2.BlockSnapshot(node_id="mac")),
            cache_index_service_pb2.PublishRequest(events=cache_index_service_pb2.BlockEvents(tiers=[on_disk])),
        ):
            await publish.write(report)
        async with running_router(settings) as server:
            channel = open_channel(f"127.0.0.1:{server.port}")
            stub = service.RouterServiceStub(channel)
            mac = await register(stub, MAC)

            async def restored(disk_bytes_per_second: float) -> messages.Candidate:
                rates = node_pb2.TierRates(disk_bytes_per_second=disk_bytes_per_second, max_read_block_count=100)
                await mac.write(messages.RegisterRequest(load=node_pb2.LoadReport(tier_rates=rates)))
                await list_until(stub, lambda listing: listing.nodes[0].load.tier_rates == rates)
                response = await stub.Place(place_request(block_hashes=HASHES, is_dry_run=True), timeout=20)
                return response.candidates[0]

            while not (quick := await restored(2e9)).decode_restored_token_count:
                pass
            slow = await restored(1e6)
            assert quick.decode_cached_token_count == quick.decode_restored_token_count == 64
            assert quick.prefill_restored_token_count == quick.decode_restored_token_count
            assert quick.estimate.restore_seconds > 0
            assert (slow.decode_cached_token_count, slow.estimate.restore_seconds) == (0, 0)
            publish.cancel()
            mac.cancel()
            await channel.close()
            await index_channel.close()
            await index.drain(0)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def test_registrations_end_when_the_router_drains() -> None:
    """Nodes see the end of the stream at once, not after the grace, and register again with the next router."""

    async def run() -> None:
        async with running_router(RouterSettings(port=0, drain_seconds=60.0)) as server:
            channel = open_channel(f"127.0.0.1:{server.port}")
            call = await register(service.RouterServiceStub(channel), DGX)
        assert await call.read() is grpc.aio.EOF
        await channel.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


def test_nodes_stay_known_to_a_router_that_stops() -> None:
    """What it still answers it must not answer from an emptied table: 9 of 190 requests heard that nobody decodes."""
    state = RouterState(time.monotonic, RouterSettings().limits())
    registrations = NodeRegistrations(state, report_interval_seconds=0.5)
    stays, leaves = RegistrationSession(), RegistrationSession()

    async def first_of(description: NodeDescription) -> AsyncIterator[NodeDescription]:
        yield description

    for session, description in ((stays, MAC), (leaves, DGX)):
        asyncio.run(registrations.read(session, first_of(description)))
    registrations.drop(leaves)
    registrations.close()
    registrations.drop(stays)

    assert [node.description.node_id for node in state.nodes] == [MAC.node_id]


def test_health_names_the_service() -> None:
    """grpc.health.v1 answers SERVING for baton.internal.v1.RouterService."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        request = health_pb2.HealthCheckRequest(service="baton.internal.v1.RouterService")
        response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)
        assert response.status == health_pb2.HealthCheckResponse.SERVING

    with_router(client)


def test_descriptions_survive_the_wire() -> None:
    """A description comes back equal, to the nanosecond in its overheads."""
    node = replace(MAC, adapters=(Adapter("mine", "1" * 32),))

    assert description_from_proto(description_to_proto(node)) == node


def test_a_request_goes_to_nodes_that_have_its_adapter() -> None:
    """Those without it, or with another one of its name, are no candidates, and the reason says which; both roles."""
    mine, other = Adapter("mine", "1" * 32), Adapter("mine", "2" * 32)
    nodes = (
        replace(MAC, node_id="mac-with", adapters=(Adapter("first", "2" * 32), mine)),
        replace(MAC, node_id="mac-without"),
        replace(MAC, node_id="mac-other", adapters=(other,)),
        replace(DGX, node_id="dgx-with", adapters=(mine,)),
        replace(DGX, node_id="dgx-without"),
    )

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _calls = [await register(stub, node) for node in nodes]
        adapter = node_pb2.Adapter(name="mine", digest="1" * 32)

        response = await stub.Place(place_request(adapter=adapter, is_dry_run=True), timeout=20)

        feasible = {
            (each.decode_node_id, each.prefill_node_id) for each in response.candidates if each.estimate.total_seconds
        }
        assert feasible == {("mac-with", ""), ("mac-with", "dgx-with")}
        reasons = {
            each.decode_node_id: each.infeasible_reason for each in response.candidates if not each.prefill_node_id
        }
        assert reasons == {
            "mac-with": "",
            "mac-without": "mac-without: adapter mine is not loaded",
            "mac-other": "mac-other: adapter mine has other weights",
        }

    with_router(client)


@pytest.mark.parametrize(
    ("adapter", "code", "words"),
    [
        (("mine", "1" * 32), grpc.StatusCode.UNAVAILABLE, "adapter mine is not loaded"),
        (("mine", "1"), grpc.StatusCode.INVALID_ARGUMENT, "adapter.digest: expected 32 lower-case"),
        (("", "1" * 32), grpc.StatusCode.INVALID_ARGUMENT, "adapter.name: must not be empty"),
    ],
)
def test_adapters_that_no_node_has_or_could_have_are_refused(
    adapter: tuple[str, str], code: grpc.StatusCode, words: str
) -> None:
    """With the reason, or the field."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _mac = await register(stub, MAC)
        name, digest = adapter
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await stub.Place(place_request(adapter=node_pb2.Adapter(name=name, digest=digest)), timeout=20)
        assert caught.value.code() is code

    with_router(client)


def test_a_pinned_request_goes_to_its_nodes_or_nowhere() -> None:
    """However much cheaper another pair is; nodes that are not there are named as the cause."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        _calls = [await register(stub, node) for node in (MAC, DGX)]
        for prefill_node_id in ("", "dgx"):
            pin = messages.PlacementPin(decode_node_id="mac", prefill_node_id=prefill_node_id)
            answer = await stub.Place(place_request(pins=[pin]))
            assert answer.placement.prefill_node_id == prefill_node_id
        answer = await stub.Place(place_request(needs_local_prefill=True))
        assert answer.placement.prefill_node_id == ""
        gone = messages.PlacementPin(decode_node_id="gone")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.Place(place_request(pins=[gone]))
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "pinned" in (refusal.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stub.Place(place_request(pins=[gone] * 65))
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_router(client)


def test_what_a_node_says_is_shown_as_it_came() -> None:
    """Sensors that it lacks stay unset; what the router has no use for, as the model's own context, is there too."""

    async def client(stub: service.RouterServiceStub, channel: grpc.aio.Channel) -> None:
        call = stub.Register()  # type: ignore[no-untyped-call]
        message = description_to_proto(MAC)
        message.model_context_token_count, message.block_count_cause = 131_072, "the usual number on a CPU"
        await call.write(messages.RegisterRequest(node=message))
        system = node_pb2.SystemSample(gpu_usage=0.5, power_watts=30)
        await call.write(messages.RegisterRequest(load=node_pb2.LoadReport(system=system)))
        while True:
            (state,) = (await stub.ListNodes(messages.ListNodesRequest())).nodes
            if state.HasField("load"):
                break

        assert state.node.model_context_token_count == 131_072
        assert state.node.block_count_cause == "the usual number on a CPU"
        assert state.load.system == system
        assert not state.load.system.HasField("temperature_celsius")

    with_router(client)
