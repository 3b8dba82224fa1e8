"""Certificates of a deployment's pods, for the tokens of their service accounts, and of the router that signs them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from baton.discovery.api_server import ServiceAccountKeys, own_api_server
from baton.errors import AuthenticationError
from baton.internal.v1 import join_service_pb2 as messages
from baton.router.settings import JoinSettings
from baton.rpc.enrolment import certified
from baton.security.access import RESERVED_NAMES, Party
from baton.security.authority import POD, Authority
from baton.security.service_account import key_id_of, pod_of

log = logging.getLogger(__name__)

_POD_NAME = re.compile(r"[a-z0-9-]{1,63}")


@dataclass(frozen=True, slots=True)
class PodEnrolment:
    """Signs for pods whose tokens the cluster has signed."""

    settings: JoinSettings
    """Say which accounts are whose."""
    namespace: str
    """Of the deployment."""
    authority: Authority
    keys: ServiceAccountKeys
    """Of the cluster."""

    def join(self, request: messages.JoinRequest, now: datetime) -> messages.JoinResponse:
        """Return a certificate for a token's pod; raise AuthenticationError, InvalidFieldError or UnavailableError."""
        token = request.service_account_token
        pod = pod_of(token, self.keys.key(key_id_of(token)), now)
        name = self.settings.pod_accounts().get(pod.account, "") if pod.namespace == self.namespace else ""
        name = pod.name if name == Party.NODE.value else name
        is_taken = name == pod.name and name in {*RESERVED_NAMES, self.settings.tls_server_name}
        if not _POD_NAME.fullmatch(name) or is_taken:
            whose = f"{pod.namespace}/{pod.account}"
            raise AuthenticationError(
                f"pods of account {whose} are none of this deployment", reason="INVALID_JOIN_TOKEN"
            )
        certificate = self.sign(request.certificate_request, name, now)
        log.info("pod_enrolled pod=%s name=%s", pod.name, name)
        return messages.JoinResponse(certificate=certificate, authorities=self.authority.certificate)

    def sign(self, request: bytes, name: str, now: datetime) -> bytes:
        """Return a certificate that bears a name, or raise InvalidFieldError for what is no request."""
        lifetime = timedelta(hours=self.settings.join_pod_hours)
        server_name = self.settings.tls_server_name
        return self.authority.sign(request, node_id=name, server_name=server_name, now=now, lifetime=lifetime, unit=POD)


@asynccontextmanager
async def signing_router(settings: JoinSettings) -> AsyncIterator[PodEnrolment]:
    """Have the router's own certificate as long as the context lasts, and yield what signs those of others."""
    identity, key_file = settings.tls_identity(), settings.join_authority_key_file
    if identity is None or key_file is None:
        raise AssertionError("the settings have all files or take no pods")
    authority = Authority.read(identity.ca_file, key_file)
    enrolment = PodEnrolment(settings, own_api_server().namespace, authority, ServiceAccountKeys())

    async def sign(request: bytes) -> bytes:
        return await asyncio.to_thread(enrolment.sign, request, Party.ROUTER.value, datetime.now(UTC))

    async with certified(identity, sign):
        yield enrolment
