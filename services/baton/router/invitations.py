"""Invitations: codes by which machines join, and the door of `baton up` to other machines; the first code opens it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import AddressValueError, IPv4Address

from baton.discovery.network import best_address, lan_addresses
from baton.errors import ConfigurationError, InvalidFieldError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1 import join_service_pb2_grpc as service
from baton.router.join_verification import Context, running_join_service
from baton.router.settings import RouterSettings
from baton.rpc.server import GrpcServer, host_port
from baton.security.authority import renew_deployment, write_private
from baton.security.join_code import Invitations
from baton.security.tls import TlsIdentity, secured_by


class LanDoor:
    """Lets other machines reach a deployment that was started on loopback alone.

    Every process of it waits for the file with the address (`TlsIdentity.lan_file`), which is written here; `stack`
    closes what is opened.
    """

    def __init__(
        self,
        settings: RouterSettings,
        identity: TlsIdentity,
        router: GrpcServer,
        invitations: Invitations,
        stack: AsyncExitStack,
    ) -> None:
        self._settings, self._identity = settings, identity
        self._router, self._invitations = router, invitations
        self._stack = stack
        self._opening = asyncio.Lock()
        self._address = ""

    @property
    def host(self) -> str:
        """Return the address at which it has been opened; empty: it is not open."""
        return self._identity.lan_host()

    async def open(self, host: str) -> str:
        """Open the join service if it is not; return HOST:PORT. Raises InvalidFieldError, or ConfigurationError."""
        async with self._opening:
            if not self._address:
                try:
                    is_loopback = IPv4Address(host).is_loopback
                except AddressValueError as error:
                    raise InvalidFieldError("address", f"expected an IPv4 address of this machine: {error}") from error
                if is_loopback:
                    raise InvalidFieldError("address", f"no other machine reaches {host}")
                self._address = await self._opened(host)
            return self._address

    async def _opened(self, host: str) -> str:
        folder, lan_file = self._identity.ca_file.parent, self._identity.lan_file
        assert lan_file is not None
        await asyncio.to_thread(renew_deployment, folder, self._identity.server_name, datetime.now(UTC))
        files = {
            "tls_ca_file": self._identity.ca_file,
            "join_authority_key_file": folder / "ca.key",
            "join_secret_file": folder / "join.secret",
            "join_assignments_file": folder / "assignments.toml",
        }
        settings = self._settings.model_copy(update={**files, "announce_address": host})
        with secured_by(replace(self._identity, lan_file=None)):
            index = self._settings.cache_index_address
            joining = running_join_service(settings, host, self._router.port, index, invitations=self._invitations)
            server = await self._stack.enter_async_context(joining)
        write_private(lan_file, host.encode("ascii"))
        return host_port(host, server.port)


class InviteServicer(service.JoinServiceServicer):
    """Serves `Invite` alone, where routers are called. `door` is opened by the first; None: it is always open."""

    def __init__(self, invitations: Invitations, door: LanDoor | None, address: str = "") -> None:
        self._invitations = invitations
        self._door = door
        self._address = address

    async def Invite(self, request: messages.InviteRequest, _context: Context) -> messages.InviteResponse:  # noqa: N802
        """Return another code."""
        own = None if request.address or not self._door or self._door.host else best_address(lan_addresses())
        address = await self._door.open(own.host if own else request.address) if self._door else self._address
        if not address:
            raise ConfigurationError("machines cannot join here: the router has no --join-secret-file")
        code, expires_at = self._invitations.create(datetime.now(UTC))
        answer = messages.InviteResponse(code=str(code), address=address, advice=own.advice if own else "")
        answer.expires_at.FromDatetime(expires_at)
        return answer
