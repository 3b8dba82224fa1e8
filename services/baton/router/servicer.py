"""RouterService: registration streams, one per node for as long as it is there, placements, the list of nodes.

A router that has just started knows nobody: its placements wait for a short while until it has heard the nodes again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeAlias

import grpc

from baton.errors import BatonError, InvalidFieldError, SupersededError
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.internal.v1 import router_service_pb2 as messages
from baton.internal.v1 import router_service_pb2_grpc as service
from baton.internal.v1.router_service_pb2 import PlaceRequest
from baton.router.admission.control import AdmissionControl
from baton.router.calibration import record_comparison
from baton.router.explanation.answer import explain
from baton.router.nodes import LinkMeasurement, LoadReport, Node, NodeDescription, NodeTable, Outcome, Report
from baton.router.placer import Placer
from baton.router.proto import peers_to_proto, registered_to_proto, reports_from_proto
from baton.router.state import RouterState
from baton.security.access import MAX_CLOCK_LEAD_NANOSECONDS, Party, current_caller
from baton.security.exposure import is_loopback
from baton.security.tls import current_identity
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.wire.quantities import duration_from_seconds, profile_to_proto

log = logging.getLogger(__name__)


QUIET_SECONDS = 0.3
"""Time without another node after which those that are known are taken for all: they all come back at once."""
_LOOK_SECONDS = 0.02


class RegistrationSession:
    """The router's side of one stream. Only the latest peers wait to be sent, so a slow reader cannot pile them up."""

    def __init__(self) -> None:
        self.node: Node | None = None
        """The registered node; None before its first message."""
        self._greeting: messages.RegisterResponse | None = None
        self._peers: Callable[[], messages.RegisterResponse] | None = None
        self._is_ended = False
        self._error: BatonError | None = None
        self._changed = asyncio.Event()

    def begin(self, node: Node, greeting: messages.RegisterResponse) -> None:
        """Greet the node."""
        self.node = node
        self._greeting = greeting
        self._changed.set()

    def send_peers(self, peers: Callable[[], messages.RegisterResponse]) -> None:
        """Send the nodes that a decode node may call, as they are then, in place of any that still wait."""
        self._peers = peers
        self._changed.set()

    def end(self, error: BatonError | None = None) -> None:
        """End the stream, with an error if there is one."""
        if not self._is_ended:
            self._is_ended, self._error = True, error
            self._changed.set()

    async def notices(self) -> AsyncIterator[messages.RegisterResponse]:
        """Yield a greeting, then peers, until the stream ends; raise BatonError if the stream was ended with one."""
        while not self._is_ended:
            await self._changed.wait()
            self._changed.clear()
            greeting, self._greeting = self._greeting, None
            if greeting is not None and not self._is_ended:
                yield greeting
            peers, self._peers = self._peers, None
            if peers is not None and not self._is_ended:
                yield peers()
        if self._error:
            raise self._error


class NodeRegistrations:
    """All sessions; feeds their reports to the state and tells decode nodes who the others are."""

    def __init__(
        self, state: RouterState, *, report_interval_seconds: float, admission: AdmissionControl | None = None
    ) -> None:
        self._identity = current_identity()
        self._state = state
        self._admission = admission
        self._greeting = registered_to_proto(report_interval_seconds)
        self._metrics = Metrics()
        self._sessions: dict[str, RegistrationSession] = {}
        self._is_closed = False

    async def read(self, session: RegistrationSession, reports: AsyncIterator[Report]) -> None:
        """Feed a stream's reports to the state; end the session when they end, or with the error of a bad one."""
        try:
            async for report in reports:
                self._take(session, report)
            session.end()
        except BatonError as error:
            session.end(error)
        except Exception:
            # The edge of the reader task: whatever happened ends this stream, no other.
            log.exception("registration_failed")
            session.end(BatonError("the registration could not be read"))

    def drop(self, session: RegistrationSession) -> None:
        """Forget the session's node, unless another session has taken it over, or the router is what goes.

        A router that stops still answers what has been asked: by the nodes that it knew, which are there.
        """
        if session.node is None or self._is_closed or not self._state.remove(session.node):
            return
        description = session.node.description
        self._sessions.pop(description.node_id, None)
        self._forget_admitted(description.node_id)
        log.info("node_left node_id=%s epoch=%d", description.node_id, description.epoch)
        self._tell_peers(description)

    def _forget_admitted(self, node_id: str) -> None:
        if self._admission is not None:
            self._admission.forget(node_id)

    def close(self) -> None:
        """End all sessions, as the router stops; nodes register with the next one."""
        self._is_closed = True
        for session in self._sessions.values():
            session.end()

    def _take(self, session: RegistrationSession, report: Report) -> None:
        if isinstance(report, NodeDescription):
            self._register(session, report)
        elif session.node is None:
            raise InvalidFieldError("report", "the first message must be node")
        elif isinstance(report, LoadReport):
            self._state.report(session.node, report)
        elif isinstance(report, LinkMeasurement):
            self._state.measure_link(session.node, report)
        else:
            current_caller().check_speaks_for(report.decode_node_id)
            self._settle(report)

    def _settle(self, outcome: Outcome) -> None:
        if self._admission is not None:
            margin = self._admission.settle(outcome)
            if margin is not None:
                self._metrics.record(names.MARGIN, margin.ttft_seconds, {names.TERM: "time_to_first_token"})
                self._metrics.record(names.MARGIN, margin.tpot_seconds, {names.TERM: "time_per_output_token"})
        comparison = self._state.settle(outcome)
        if comparison is None:
            return
        record_comparison(self._metrics, comparison, outcome)

    def _register(self, session: RegistrationSession, description: NodeDescription) -> None:
        if session.node is not None:
            raise InvalidFieldError("report", "node must be sent once, as the first message")
        current_caller().check_speaks_for(description.node_id)
        self._check_address(description)
        if description.epoch > time.time_ns() + MAX_CLOCK_LEAD_NANOSECONDS:
            problem = (
                f"expected a start of the process, got {description.epoch}, more than a day from now: set its clock"
            )
            raise InvalidFieldError("node.epoch", problem)
        session.begin(self._state.register(description), self._greeting)
        earlier = self._sessions.get(description.node_id)
        self._sessions[description.node_id] = session
        if earlier:
            earlier.end(SupersededError(f"node {description.node_id} registered again, epoch {description.epoch}"))
            self._forget_admitted(description.node_id)
            if earlier.node:
                self._tell_peers(earlier.node.description)
        log.info(
            "node_registered node_id=%s epoch=%d role=%s model=%s address=%s",
            description.node_id,
            description.epoch,
            description.role,
            description.model_id,
            description.address,
        )
        revision = description.layout.model_revision_digest
        rivals = (each.description for each in self._state.nodes.of_model(description.model_id))
        if rival := next((each for each in rivals if each.layout.model_revision_digest != revision), None):
            ids = description.node_id, rival.node_id
            log.warning("models_differ model=%s nodes=%s,%s: one name for two models", description.model_id, *ids)
        if description.can_decode:
            session.send_peers(partial(self._peers_of, description))
        self._tell_peers(description)
        if self._is_closed:
            session.end()

    def _check_address(self, description: NodeDescription) -> None:
        """Check that a node of another machine does not name a port of this one, where loopback is believed."""
        identity = self._identity
        if identity and identity.lan_file and current_caller().party is Party.NODE:
            for address in filter(None, (description.address, description.fast_address)):
                if is_loopback(address.rpartition(":")[0]):
                    raise InvalidFieldError("node.address", f"{address} is no address by which other machines reach it")

    def _tell_peers(self, changed: NodeDescription) -> None:
        """Tell the other decode nodes of a model that a node of it has come or gone."""
        for session in self._sessions.values():
            if session.node is None or session.node.description.node_id == changed.node_id:
                continue
            description = session.node.description
            if description.can_decode and description.model_id == changed.model_id:
                session.send_peers(partial(self._peers_of, description))

    def _peers_of(self, description: NodeDescription) -> messages.RegisterResponse:
        """Return the notice of all other nodes of a node's model."""
        nodes = self._state.nodes.of_model(description.model_id)
        identity, is_here = self._identity, is_loopback(description.address.rpartition(":")[0])
        return peers_to_proto(
            tuple(node.description for node in nodes if node.description.node_id != description.node_id),
            identity.lan_host() if identity and not is_here else "",
        )


def list_nodes(state: RouterState) -> router_service_pb2.ListNodesResponse:
    """Return every node with its corrected profile, last report, links and calibration."""
    return router_service_pb2.ListNodesResponse(nodes=[_node_state(state, node) for node in state.nodes])


def _node_state(state: RouterState, node: Node) -> router_service_pb2.NodeState:
    description = node.description
    shown = router_service_pb2.NodeState(
        node=description.message,
        load=node.report.message if node.report else None,
        links=_links(state, node),
        prefill_calibration=state.prefill_calibration.reported(description.node_id),
        decode_calibration=state.decode_calibration.reported(description.node_id),
        unusable_reason=state.nodes.unusable_reason(node),
        report_age=duration_from_seconds(state.nodes.report_age_seconds(node)),
        heard_for=duration_from_seconds(state.nodes.heard_for_seconds(node)),
    )
    profile = state.corrected_profile(description)
    shown.node.profile.MergeFrom(profile_to_proto(profile, source=shown.node.profile.source))
    return shown


def _links(state: RouterState, decoder: Node) -> list[node_pb2.LinkMeasurement]:
    """Return the measured links into a decode node, rates as corrected since."""
    if not decoder.description.can_decode:
        return []
    links = []
    for sender in state.nodes.of_model(decoder.description.model_id):
        link = state.link(sender, decoder)
        if sender is not decoder and link.is_measured:
            links.append(
                node_pb2.LinkMeasurement(
                    from_node_id=sender.description.node_id,
                    bytes_per_second=link.bytes_per_second,
                    round_trip=duration_from_seconds(link.round_trip_seconds),
                )
            )
    return links


class WarmUp:
    """Holds placements back for a while after the start; afterwards it is out of the way.

    A placement goes on once the nodes that it needs are known and no other has come for `QUIET_SECONDS`: the first node
    to return would get everything otherwise. One whose nodes do not come is refused as always when the time has passed.
    `longest_seconds` is from the start on; 0: nothing waits.
    """

    def __init__(
        self,
        nodes: NodeTable,
        longest_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._sleep = sleep
        self._ends_at = clock() + longest_seconds
        self._known: frozenset[str] = frozenset()
        self._changed_at = clock()

    async def wait_for(self, request: PlaceRequest) -> None:
        """Return when a placement may be decided."""
        while (now := self._clock()) < self._ends_at and not self._may_go(request, now):
            await self._sleep(_LOOK_SECONDS)

    def _may_go(self, request: PlaceRequest, now: float) -> bool:
        known = frozenset(node.description.node_id for node in self._nodes)
        if known != self._known:
            self._known, self._changed_at = known, now
        return self._has_nodes_for(request) and now - self._changed_at >= QUIET_SECONDS

    def _has_nodes_for(self, request: PlaceRequest) -> bool:
        if request.pins:
            return any({pin.decode_node_id, pin.prefill_node_id} - {""} <= self._known for pin in request.pins)
        return any(node.description.can_decode for node in self._nodes.of_model(request.model_id))


Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class RouterServicer(service.RouterServiceServicer):
    """Serves one router's state, on one event loop."""

    def __init__(
        self,
        state: RouterState,
        placer: Placer,
        registrations: NodeRegistrations,
        warm_up: WarmUp,
        used_at: dict[str, float] | None = None,
    ) -> None:
        self._used_at = {} if used_at is None else used_at  # a function would be one file more of every request
        self._state = state
        self._placer = placer
        self._registrations = registrations
        self._warm_up = warm_up

    async def Register(  # noqa: N802 - named by the proto
        self, request_iterator: AsyncIterator[messages.RegisterRequest], _context: Context
    ) -> AsyncIterator[messages.RegisterResponse]:
        """Keep a node registered until either side ends the stream."""
        session = RegistrationSession()
        # No TaskGroup: this is a generator, and a group would cancel whoever awaits it between two responses.
        reader = asyncio.create_task(self._registrations.read(session, _reports(request_iterator)))
        try:
            async for notice in session.notices():
                yield notice
        finally:
            self._registrations.drop(session)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def Place(self, request: messages.PlaceRequest, _context: Context) -> messages.PlaceResponse:  # noqa: N802
        """Choose where a request runs."""
        if not request.is_dry_run:
            self._used_at[request.model_id] = time.monotonic()
        await self._warm_up.wait_for(request)
        return await self._placer.place(request)

    async def ListNodes(self, _request: messages.ListNodesRequest, _context: Context) -> messages.ListNodesResponse:  # noqa: N802
        """List the nodes."""
        return list_nodes(self._state)

    async def Explain(self, request: messages.ExplainRequest, _context: Context) -> messages.ExplainResponse:  # noqa: N802
        """Say why a request ran where it ran."""
        return explain(self._state.decisions, request)


async def _reports(requests: AsyncIterator[messages.RegisterRequest]) -> AsyncIterator[Report]:
    async for request in requests:
        for report in reports_from_proto(request):
            yield report
