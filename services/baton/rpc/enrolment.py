"""A certificate that a process gets by itself and renews: a pod shows its token to a router, which signs its own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NoReturn

import grpc

from baton.errors import BatonError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.rpc.status import error_from_rpc
from baton.security.access import Party
from baton.security.authority import certificate_request, create_key, renewal_seconds, valid_period, write_private
from baton.security.tls import TlsIdentity, TlsSettings
from baton.telemetry import names
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

Sign = Callable[[bytes], Awaitable[bytes]]
"""Returns the certificate for a request, both PEM."""

_CALL_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 5.0
_LOOK_SECONDS = 30.0
_LONGEST_RENEWAL_PAUSE_SECONDS = 120.0

Sleep = Callable[[float], Awaitable[None]]
Now = Callable[[], datetime]


@asynccontextmanager
async def certified(
    identity: TlsIdentity, sign: Sign, *, sleep: Sleep = asyncio.sleep, now: Now = lambda: datetime.now(UTC)
) -> AsyncIterator[None]:
    """Have a certificate in the files of an identity as long as the context lasts; its key goes nowhere else.

    `sign` is asked again until it answers: what refuses today may be about to start.
    """
    key = create_key()
    write_private(identity.key_file, key)

    async def enrol() -> bytes:
        certificate = await sign(certificate_request(key, identity.server_name))
        write_private(identity.cert_file, certificate)
        log.info("enrolled renewal_seconds=%.0f", renewal_seconds(certificate, now()))
        return certificate

    certificate, pause = b"", _FIRST_PAUSE_SECONDS
    while not certificate:
        try:
            certificate = await enrol()
        except (BatonError, OSError) as error:  # no router answers, or the token is being replaced
            log.warning("enrolment_waits cause=%r", str(error))
            await sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - all pods of a release begin at once
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    renewing = asyncio.ensure_future(keep_renewed(certificate, enrol, sleep=sleep, now=now))
    try:
        yield
    finally:
        renewing.cancel()


async def keep_renewed(
    certificate: bytes, renew: Callable[[], Awaitable[bytes]], *, sleep: Sleep, now: Now
) -> NoReturn:
    """Renew a certificate whenever two thirds of its life have passed, until cancelled.

    The calendar is looked at twice a minute: a long pause would not end in time on a machine that sleeps meanwhile.
    Whatever a failure is, it is logged, counted and tried again: the certificate holds for a third of its life yet.
    """
    metrics, pause = Metrics(), _LOOK_SECONDS
    while True:
        await sleep(pause)
        if renewal_seconds(certificate, now()) > 0:
            continue
        try:
            certificate, pause = await renew(), _LOOK_SECONDS
        except Exception as error:  # the edge of the task: unseen, it would end here
            metrics.add(names.RENEWAL_FAILURES)
            left = (valid_period(certificate)[1] - now()).total_seconds()
            log.error(
                "renewal_failed seconds_left=%.0f cause=%r", left, error, exc_info=not isinstance(error, BatonError)
            )
            pause = min(2 * pause, _LONGEST_RENEWAL_PAUSE_SECONDS) if pause != _LOOK_SECONDS else _FIRST_PAUSE_SECONDS


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
