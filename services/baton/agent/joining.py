"""Joins a deployment: finds the router, shows the token, keeps what it answers. Every connection goes out from here."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from itertools import cycle
from typing import NamedTuple, NoReturn

import grpc

from baton.agent.membership import AssignedWorker, Membership, assigned_worker
from baton.agent.settings import AgentSettings
from baton.discovery.lan import find_router
from baton.errors import OverloadedError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.rpc.enrolment import keep_renewed
from baton.rpc.server import split_addresses
from baton.rpc.status import error_from_rpc, error_info
from baton.security.access import ROUTER_NAMES
from baton.security.authority import certificate_request, check_intact
from baton.security.join_token import JoinToken, parse_join_token
from baton.security.tls import TlsIdentity

log = logging.getLogger(__name__)

_CALL_SECONDS = 15.0
_FIND_SECONDS = 10.0
_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0

Find = Callable[[], Awaitable[str]]
"""Returns host:port of a router's join service."""


class Joined(NamedTuple):
    """A membership that holds."""

    worker: AssignedWorker
    certificate: bytes


class Joiner:
    """Joins for one machine, again whenever it is asked to.

    `token` is shown to the router once it has proved to be of the deployment; `find` finds it anew for every attempt.
    """

    def __init__(
        self,
        token: JoinToken,
        node_id: str,
        membership: Membership,
        find: Find,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._token, self._node_id = token, node_id
        self._membership, self._find = membership, find
        self._sleep, self._now = sleep, now

    @property
    def identity(self) -> TlsIdentity:
        """Return who this machine is once it has joined."""
        return self._membership.identity

    async def join(self) -> Joined:
        """Join, or go on with the membership kept last, or wait; raise AuthenticationError or BatonError if refused."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self.ask()
            except (UnavailableError, OverloadedError) as error:
                log.warning("join_waits cause=%r", error.message)
            if kept := self._membership.kept(self._now()):
                log.info("join_kept node=%s", self._node_id)
                return Joined(assigned_worker(kept, self._membership.asked_address()), kept.certificate)
            await self._sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - many machines must not come at once
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def ask(self) -> Joined:
        """Ask a router once; raise a BatonError if there is none, or it refuses."""
        address = await self._find()
        request = messages.JoinRequest(
            secret=self._token.join_pass,
            node_id=self._node_id,
            certificate_request=certificate_request(self._membership.key(), self._node_id),
            certificate=self._membership.certificate(self._now()),
        )
        try:
            answer = await self._answer(address, request)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if isinstance(error, UnavailableError) and error_info(rpc_error) is None:
                problem = f"no router answers at {address} ({error.message}): is that its join port, open from here,"
                problem += " and does it serve TLS of the token's authority? --join-address names another"
                raise UnavailableError(problem, reason=error.reason) from rpc_error
            raise error from rpc_error
        self._membership.keep(answer, address)
        worker = assigned_worker(answer, address)
        log.info("joined router=%s node=%s role=%s", address, self._node_id, worker.role)
        return Joined(worker, answer.certificate)

    async def renew(self, certificate: bytes) -> NoReturn:
        """Renew the certificate in time, until cancelled."""

        async def ask() -> bytes:
            return (await self.ask()).certificate

        await keep_renewed(certificate, ask, sleep=self._sleep, now=self._now)

    async def _answer(self, address: str, request: messages.JoinRequest) -> messages.JoinResponse:
        """Return what a router answers; to others of the deployment the token is not shown."""
        for is_last, name in enumerate(ROUTER_NAMES):
            try:
                async with self._channel(address, name) as channel:
                    stub = JoinServiceStub(channel)  # type: ignore[no-untyped-call]
                    return await stub.Join(request, timeout=_CALL_SECONDS)  # type: ignore[no-any-return]
            except grpc.aio.AioRpcError as error:
                if is_last or error_info(error) is not None:
                    raise
        raise AssertionError("there are two names")

    def _channel(self, address: str, name: str) -> grpc.aio.Channel:
        """Return a channel that believes a process whom the token's authority, or a member's, has given a name."""
        kept = self._membership.kept(self._now())
        roots = b"\n".join((self._token.authority, kept.authorities if kept else b""))
        options = (("grpc.ssl_target_name_override", f"{name}.{self._membership.identity.server_name}"),)
        credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        return grpc.aio.secure_channel(address, credentials, options=options)


def joiner_of(settings: AgentSettings) -> Joiner:
    """Return what joins for an agent, or raise ConfigurationError if its token is none."""
    token = parse_join_token(settings.read_join_token())
    check_intact(token.authority)
    membership = Membership(settings.state_folder, settings.tls_server_name)
    return Joiner(token, settings.node_id, membership, finder(settings.join_address))


def finder(join_address: str, find_seconds: float = _FIND_SECONDS) -> Find:
    """Return what finds a router: at each of some addresses in turn, or, where there are none, by multicast DNS."""
    addresses = cycle(split_addresses(join_address))

    async def given() -> str:
        return next(addresses)

    return given if join_address else lambda: find_router(find_seconds)
