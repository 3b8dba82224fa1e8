"""The gateway's side of the router: placements, retried over a short absence, and the nodes that it knows."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import grpc

from baton.errors import BatonError, ConfigurationError, NotFoundError, UnavailableError
from baton.internal.v1 import join_service_pb2 as joining
from baton.internal.v1 import model_service_pb2 as models
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.internal.v1.model_service_pb2_grpc import ModelServiceStub
from baton.internal.v1.node_pb2 import NodeDescription
from baton.internal.v1.router_service_pb2 import ListNodesRequest, NodeState, PlaceRequest, PlaceResponse
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.status import error_from_rpc, without_address

log = logging.getLogger(__name__)

NO_NODE = "NO_NODE"
"""Reason of the router's refusal when no node can take a request."""
NOT_LEADER = "NOT_LEADER"
"""Reason of a router that another one plans for."""

_MOST_ROUTERS = 8
"""Connections over which the one that leads is looked for."""
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5
_INVITE_SECONDS = 30.0
"""The first invitation makes certificates, and opens ports."""


class RouterClient:
    """Asks one of the routers, and about models the one that leads. `close` ends its channels."""

    def __init__(self, address: str, *, timeout_seconds: float) -> None:
        self._address = address
        self._cause = ""
        self._timeout_seconds = timeout_seconds
        self._channel = LoopChannel(address, is_balanced=True)
        self._stub = RouterServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._channels = [LoopChannel(part, is_balanced=True) for part in address.split(",")]

    async def place(self, request: PlaceRequest) -> PlaceResponse:
        """Return where a request runs; asks for `timeout_seconds` at most while the router is away or knows no node.

        Nodes that an earlier attempt excluded are allowed again once no other is left, and waited for as long as the
        router: they may be restarting.

        Raises:
            BatonError: The router's refusal, or UnavailableError if it did not answer in time.
        """
        loop = asyncio.get_running_loop()
        is_patient = bool(request.excluded_node_ids)
        deadline, pause_seconds = loop.time() + self._timeout_seconds, _FIRST_PAUSE_SECONDS
        refusal: UnavailableError | None = None
        while True:
            try:
                response: PlaceResponse = await self._stub.Place(request, timeout=max(0.05, deadline - loop.time()))
                return response
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                if isinstance(error, NotFoundError):  # nodes have served it: a router that has just started knows none
                    error, is_patient = UnavailableError(error.message, reason=NO_NODE), True
                is_final = error.reason == NO_NODE and not is_patient
                if is_final or not isinstance(error, UnavailableError):
                    raise error from rpc_error
                if loop.time() + pause_seconds >= deadline:
                    raise self._absence(refusal or error) from rpc_error
            if error.reason == NO_NODE:
                refusal = error
                del request.excluded_node_ids[:]
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def list_nodes(self) -> Sequence[NodeDescription]:
        """Return the nodes that the router knows.

        Raises BatonError if the router does not answer.
        """
        return [state.node for state in await self.list_node_states()]

    async def list_node_states(self) -> Sequence[NodeState]:
        """Return the nodes that the router knows, with their load and links.

        Raises BatonError if the router does not answer.
        """
        try:
            response = await self._stub.ListNodes(ListNodesRequest(), timeout=self._timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._absence(error_from_rpc(error)) from error
        states: Sequence[NodeState] = response.nodes
        return states

    async def list_models(self) -> models.ListModelsResponse | None:
        """Return where models stand that are wanted or served, and the plan, as the leader says.

        Nothing where nobody plans; None: no leader answers now.
        """
        try:
            answer: models.ListModelsResponse = await self._ask_leader("ListModels", models.ListModelsRequest())
        except grpc.aio.AioRpcError as error:
            return models.ListModelsResponse() if error.code() is grpc.StatusCode.UNIMPLEMENTED else None
        return answer

    async def change_model(self, request: models.ChangeModelRequest) -> models.ChangeModelResponse:
        """Change what models are wanted; return how the model stands, or would.

        Raises BatonError if the leader refuses, or no router answers.
        """
        try:
            answer: models.ChangeModelResponse = await self._ask_leader("ChangeModel", request)
        except grpc.aio.AioRpcError as error:
            raise self._absence(error_from_rpc(error)) from error
        return answer

    async def _ask_leader(self, method: str, request: object) -> Any:
        """Return what the router that leads answers; behind one address each further connection is to another one."""
        for channel in itertools.islice(itertools.cycle(self._channels), _MOST_ROUTERS):
            try:
                return await getattr(ModelServiceStub(channel), method)(request, timeout=self._timeout_seconds)  # type: ignore[no-untyped-call]
            except grpc.aio.AioRpcError as rpc_error:
                error = rpc_error
                if error_from_rpc(error).reason != NOT_LEADER and channel is self._channels[-1]:
                    break
                channel.renew()
        raise error

    async def invite(self) -> joining.InviteResponse:
        """Return a code by which one machine joins; the deployment is open to other machines from then on.

        Raises BatonError if machines cannot join there, or no router answers.
        """
        try:
            stub = JoinServiceStub(self._channel)  # type: ignore[no-untyped-call]
            answer: joining.InviteResponse = await stub.Invite(joining.InviteRequest(), timeout=_INVITE_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigurationError("machines join a `baton up`, or a router with --join-port") from error
            raise self._absence(error_from_rpc(error)) from error
        return answer

    async def close(self) -> None:
        """Close the channels."""
        for channel in (self._channel, *self._channels):
            await channel.close()

    def _absence(self, error: BatonError) -> BatonError:
        """Return an error as clients are told of it; where the router is, the log says, once for each cause."""
        if error.reason == NO_NODE or not isinstance(error, UnavailableError):
            return error
        if error.message != self._cause:
            self._cause = error.message
            log.warning("router_away address=%s cause=%r", self._address, error.message)
        shown = without_address(error, "there is no connection to it")
        return UnavailableError(f"the router does not answer: {shown.message}", reason="ROUTER_UNAVAILABLE")
