"""The router as a process."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from baton.config.container_limits import Memory, machine_memory, usable_memory
from baton.config.memory_budget import Claim, room_in, share_out
from baton.installation import lacking
from baton.internal.v1 import router_service_pb2 as messages
from baton.internal.v1 import router_service_pb2_grpc as service
from baton.internal.v1.join_service_pb2_grpc import add_JoinServiceServicer_to_server
from baton.internal.v1.model_service_pb2_grpc import add_ModelServiceServicer_to_server
from baton.router.admission.control import AdmissionControl
from baton.router.in_flight import MAX_ENTRIES
from baton.router.models import servicer as model_servicer
from baton.router.models.desired import DesiredModels
from baton.router.models.lease import Lease
from baton.router.models.supervision import ModelSupervision
from baton.router.placer import CacheIndexClient, Placer
from baton.router.servicer import NodeRegistrations, RouterServicer, WarmUp
from baton.router.settings import RouterSettings
from baton.router.state import RouterState
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.process import freeze_loaded_objects
from baton.rpc.server import GrpcServer, host_port, wait_for_stop_signal
from baton.security.tls import current_identity
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

PLACEMENT_BYTES = 8_400
"""Memory of a placement with its record: 8,263 were measured among 16 nodes."""
_LEAST_PLACEMENTS = 256
SERVICE_NAME = messages.DESCRIPTOR.services_by_name["RouterService"].full_name


@asynccontextmanager
async def running_router(settings: RouterSettings) -> AsyncIterator[GrpcServer]:
    """Run a router, then drain it, registrations first; raise ConfigurationError if its address cannot be bound."""
    channel = LoopChannel(settings.cache_index_address) if settings.cache_index_address else None
    seconds = settings.cache_lookup_seconds
    lookup = CacheIndexClient(channel, timeout_seconds=seconds, metrics=Metrics()) if channel else None
    max_placements = placements_within(usable_memory(), machine_memory())
    state = RouterState(time.monotonic, settings.limits(), max_placements=max_placements)
    limits = settings.admission()
    admission = AdmissionControl(time.monotonic, limits) if limits else None
    registrations = NodeRegistrations(
        state, report_interval_seconds=settings.report_interval_seconds, admission=admission
    )
    placer = Placer(state, lookup, policy=settings.prefill_policy, admission=admission)
    warm_up = WarmUp(state.nodes, settings.warm_up_seconds)
    lease = Lease(settings.models_lease, socket.gethostname()) if settings.models_lease else None
    desired = DesiredModels(settings.models_file, lease)
    models = ModelSupervision(desired, state, turn_seconds=settings.model_turn_seconds)
    servicer = RouterServicer(state, placer, registrations, warm_up, models.turns.used_at)
    server = GrpcServer(host_port(settings.host, settings.port))
    server.add(SERVICE_NAME, partial(service.add_RouterServiceServicer_to_server, servicer))
    adding = partial(add_ModelServiceServicer_to_server, model_servicer.ModelServicer(models))
    server.add(model_servicer.SERVICE_NAME, adding)
    planning = asyncio.gather(models.run(), *([lease.run()] if lease else []))
    try:
        async with _joining(settings, server, lambda: _names_taken(state, models)):
            yield server
    finally:
        planning.cancel()
        await asyncio.gather(planning, return_exceptions=True)
        models.close()
        registrations.close()
        await server.drain(settings.drain_seconds)
        if channel:
            await channel.close()


def placements_within(memory: Memory, machine: Memory) -> int:
    """Return how many placements may be remembered; raise ConfigurationError if there is room for too few."""
    claim = Claim("placements", MAX_ENTRIES * PLACEMENT_BYTES, _LEAST_PLACEMENTS * PLACEMENT_BYTES)
    room = room_in(memory, machine)
    chosen = share_out(room, [claim])["placements"] // PLACEMENT_BYTES
    log.info("memory_shared room_bytes=%d cause=%r max_placements=%d", *room, chosen)
    return chosen


def _names_taken(state: RouterState, models: ModelSupervision) -> Collection[str]:
    """Return the names of machines and nodes that are there."""
    heard = {each.description.node_id for each in state.nodes if not state.nodes.unusable_reason(each)}
    return heard | models.listed().machine_free_byte_counts.keys()


@asynccontextmanager
async def _joining(
    settings: RouterSettings, server: GrpcServer, taken: Callable[[], Collection[str]]
) -> AsyncIterator[None]:
    """Serve, and let machines of names not `taken` join, and pods; this router's own certificate comes first."""
    identity = current_identity()
    opens_later = identity is not None and identity.lan_file is not None
    if not settings.join_port or (opens_later and lacking("agent")):
        await server.start()
        yield
        return
    from baton.router import invitations, join_verification, pod_enrolment  # whose packages are in an extra
    from baton.security.join_code import Invitations

    async with AsyncExitStack() as stack:
        codes, door, address = Invitations(taken), None, host_port(settings.announce_address, settings.join_port)
        if identity and opens_later:
            door = invitations.LanDoor(settings, identity, server, codes, stack)
        inviting = invitations.InviteServicer(codes, door, address if settings.join_secret_file else "")
        server.add(join_verification.SERVICE_NAME, partial(add_JoinServiceServicer_to_server, inviting))
        pods = await stack.enter_async_context(pod_enrolment.signing_router(settings)) if settings.join_pods else None
        port, index = await server.start(), settings.cache_index_address
        if door is None:
            joining = join_verification.running_join_service(
                settings, settings.host, port, index, pods, invitations=codes
            )
            await stack.enter_async_context(joining)
        elif host := door.host:
            await door.open(host)  # it was open when this router was started again
        yield


async def serve(settings: RouterSettings) -> None:
    """Serve until SIGTERM or SIGINT, then drain; raise ConfigurationError if the address cannot be bound."""
    stop = asyncio.ensure_future(wait_for_stop_signal())
    try:
        async with running_router(settings):
            freeze_loaded_objects()
            await stop
    finally:
        stop.cancel()
