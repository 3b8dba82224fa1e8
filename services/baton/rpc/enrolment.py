"""A certificate that a process gets by itself and renews: a pod shows its token to a router, which signs its own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc

from baton.errors import BatonError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.rpc.status import error_from_rpc
from baton.security.access import Party
from baton.security.authority import certificate_request, create_key, renewal_seconds, write_private
from baton.security.tls import TlsIdentity, TlsSettings

log = logging.getLogger(__name__)

Sign = Callable[[bytes], Awaitable[bytes]]
"""Returns the certificate for a request, both PEM."""

_CALL_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_LOOK_SECONDS = 30.0


@asynccontextmanager
async def certified(
    identity: TlsIdentity,
    sign: Sign,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[None]:
    """Have a certificate in the files of an identity as long as the context lasts; its key goes nowhere else.

    `sign` is asked again until it answers: what refuses today may be about to start.
    """
    key = create_key()
    write_private(identity.key_file, key)

    async def enrol() -> bytes:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                certificate = await sign(certificate_request(key, identity.server_name))
            except (BatonError, OSError) as error:  # no router answers, or the token is being replaced
                log.warning("enrolment_waits cause=%r", str(error))
                await sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - all pods of a release begin at once
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            write_private(identity.cert_file, certificate)
            log.info("enrolled renewal_seconds=%.0f", renewal_seconds(certificate, now()))
            return certificate

    async def renew(certificate: bytes) -> None:
        while True:
            await sleep(_LOOK_SECONDS)
            if renewal_seconds(certificate, now()) <= 0:
                certificate = await enrol()  # the present one holds for a third of its life

    renewing = asyncio.ensure_future(renew(await enrol()))
    try:
        yield
    finally:
        renewing.cancel()


async def enrolled(settings: TlsSettings, run: Awaitable[None]) -> None:
    """Run a service with the certificate that a router signs for it, as its settings have it."""
    identity, token_file = settings.tls_identity(), settings.tls_enrol_token_file
    if identity is None or token_file is None:
        raise AssertionError("who enrols has an identity and a token")

    async def sign(request: bytes) -> bytes:
        return await ask_router(settings.tls_enrol_address, identity, token_file.read_text("ascii"), request)

    async with certified(identity, sign):
        await run


async def ask_router(address: str, identity: TlsIdentity, token: str, request: bytes) -> bytes:
    """Return the certificate for a request; the token is shown to none but a router of the deployment."""
    options = (("grpc.ssl_target_name_override", f"{Party.ROUTER.value}.{identity.server_name}"),)
    credentials = grpc.ssl_channel_credentials(identity.ca_file.read_bytes())
    message = messages.JoinRequest(service_account_token=token.strip(), certificate_request=request)
    try:
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            answer = await JoinServiceStub(channel).Join(message, timeout=_CALL_SECONDS)  # type: ignore[no-untyped-call]
    except grpc.aio.AioRpcError as error:
        raise error_from_rpc(error) from error
    certificate: bytes = answer.certificate
    return certificate
