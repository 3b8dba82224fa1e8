"""JoinService: takes in pods, and machines that hold a token, a certificate or a code, on a port of its own.

It bounds wrong tokens and codes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError

from baton import __version__
from baton.discovery.lan import announced
from baton.errors import AuthenticationError, InvalidFieldError, OverloadedError, UnavailableError
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1 import join_service_pb2_grpc as service
from baton.router.machine_assignments import assigned, read_assignments
from baton.router.pod_enrolment import PodEnrolment
from baton.router.settings import JoinSettings
from baton.rpc.server import GrpcServer, PortLimits, host_port
from baton.security.access import OWN, RESERVED_NAMES
from baton.security.authority import Authority
from baton.security.join_code import LIFETIME, CodeExchange, Invitations
from baton.security.join_token import JoinPasses, JoinToken, create_pass, first_certificate, read_secret
from baton.wire.node_roles import role_to_proto

MAX_FAILURES = 5
"""Wrong tokens from one address within the window; further ones are told to wait. Right ones never are: many machines
may have one address."""
WINDOW_SECONDS = 60.0
"""Time after which a failure is forgotten."""
MAX_ADDRESSES = 1024
"""Addresses remembered; the one that failed longest ago goes first."""


class AttemptLimit:
    """Remembers failures by address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Let a failure be told what it was; raise OverloadedError if too many from the address have failed."""
        failures = self._failures.get(address)
        while failures and self._clock() - failures[0] >= WINDOW_SECONDS:
            failures.popleft()
        if failures and len(failures) >= MAX_FAILURES:
            seconds = WINDOW_SECONDS - (self._clock() - failures[0])
            what = "wrong tokens or codes"
            raise OverloadedError(f"too many {what} from {address}; again in {seconds:.0f} s", reason="JOIN_RATE")

    def note_failure(self, address: str) -> None:
        """Remember a wrong token or code."""
        self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._clock())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)


log = logging.getLogger(__name__)

SERVICE_NAME = messages.DESCRIPTOR.services_by_name["JoinService"].full_name
_LIMITS = PortLimits(request_bytes=64 << 10, num_streams=16, num_ping_strikes=2)
"""Of strangers: a request has a name, a secret and a certificate request."""
_NODE_ID = re.compile(rf"(?!.*{OWN})[a-z0-9-]{{1,63}}")
_ENTER_SECONDS = 15.0
_EXCHANGE_SECONDS = 0.1
"""Between two exchanges: each computes for some 20 ms, whoever asks for it."""
_MAX_EXCHANGES = 32
"""That wait for their turn."""
_DIAL_SECONDS = 3.0
_CLOCK_SKEW = timedelta(minutes=5)
"""Certificates begin so much earlier, and grants of routers are taken so much later."""

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """What those who join get."""

    passes: JoinPasses | None
    """Prove the right to join; None: no machine can, but pods."""
    authority: Authority
    """Signs their certificates."""
    assignments_file: Path | None
    """Says what they run."""
    server_name: str
    """Name in their certificates."""
    lifetime: timedelta
    """Of their certificates."""
    router_address: str
    """host:port of the router, or :port."""
    cache_index_address: str
    """The same of the cache index; empty: none."""
    pods: PodEnrolment | None = None
    """Knows pods; None: none joins."""
    secret: str = ""
    """Of which passes are made; empty where no machine can join."""


class JoinServicer(service.JoinServiceServicer):
    """Checks tokens and codes, and answers those who hold the right one."""

    def __init__(self, policy: JoinPolicy, limit: AttemptLimit, invitations: Invitations) -> None:
        self._policy = policy
        self._limit = limit
        self._invitations = invitations
        self._num_exchanges = 0
        self._exchanging = asyncio.Lock()

    async def Join(self, request: messages.JoinRequest, context: Context) -> messages.JoinResponse:  # noqa: N802
        """Take a machine or a pod in, or renew its certificate."""
        address, now = host_of(context.peer()), datetime.now(UTC)
        pods, passes = self._policy.pods, self._policy.passes
        try:
            if pods and request.service_account_token:
                return await asyncio.to_thread(pods.join, request, now)
            if passes is None:
                raise AuthenticationError("no machine can join here, but pods", reason="INVALID_JOIN_TOKEN")
            if await asyncio.to_thread(_is_member, self._policy, request, now):
                return await asyncio.to_thread(join, self._policy, request, now)
            with passes.used_by(request.node_id, request.secret, now):
                return await asyncio.to_thread(join, self._policy, request, now)
        except AuthenticationError:
            self._note_refusal(address, request.node_id)
            raise

    async def Enter(  # noqa: N802
        self, requests: AsyncIterator[messages.EnterRequest], context: Context
    ) -> AsyncIterator[messages.EnterResponse]:
        """Give a token to a machine that proves to know a code."""
        address, node_id = host_of(context.peer()), ""
        try:
            async with asyncio.timeout(_ENTER_SECONDS):
                begin = (await anext(requests, messages.EnterRequest())).begin
                newcomer = _newcomer(begin.newcomer)
                number, node_id = newcomer.code_number, newcomer.node_id
                exchange, expected = await self._exchanged(self._invitations.words_of(number), begin)
                yield messages.EnterResponse(element=exchange.element)
                self._invitations.check(number, expected, (await anext(requests, messages.EnterRequest())).proof)
                outcome = await self._outcome(newcomer, address)
                yield messages.EnterResponse(sealed=exchange.seal(outcome.SerializeToString()))
        except AuthenticationError:
            self._note_refusal(address, node_id)
            raise
        except TimeoutError as error:
            raise UnavailableError(f"nothing was said for {_ENTER_SECONDS:.0f} s") from error

    async def _exchanged(self, words: str, begin: messages.EnterBegin) -> tuple[CodeExchange, bytes]:
        """Return this side of an exchange, and the proof that is expected; so many in a second, however many ask."""
        if self._num_exchanges >= _MAX_EXCHANGES:
            raise OverloadedError("too many machines show codes: again in some seconds", reason="JOIN_RATE")
        self._num_exchanges += 1
        try:
            async with self._exchanging:
                exchange = await asyncio.to_thread(CodeExchange, words, begin.newcomer, is_router=True)
                expected = await asyncio.to_thread(exchange.take, begin.element)
                await asyncio.sleep(_EXCHANGE_SECONDS)
            return exchange, expected
        finally:
            self._num_exchanges -= 1

    async def _outcome(self, newcomer: messages.Newcomer, address: str) -> messages.EnterOutcome:
        problem = _disagreement(newcomer, datetime.now(UTC)) or await _blockade(address, newcomer.worker_port)
        now, number = datetime.now(UTC), newcomer.code_number
        problem = (
            self._invitations.problem(number, newcomer.node_id, now) or problem
        )  # nothing is awaited from here until it is used
        if problem:
            log.warning("join_refused peer=%s node=%r cause=%r", address, newcomer.node_id, problem)
            return messages.EnterOutcome(problem=problem)
        self._invitations.use(number, newcomer.node_id)
        shown = create_pass(self._policy.secret, ends_at=now + LIFETIME, node_id=newcomer.node_id)
        return messages.EnterOutcome(token=JoinToken(shown, first_certificate(self._policy.authority.certificate)).text)

    def _note_refusal(self, address: str, node_id: str) -> None:
        self._limit.check(address)
        self._limit.note_failure(address)
        log.warning("join_refused peer=%s node=%r", address, node_id[:63])


def _newcomer(content: bytes) -> messages.Newcomer:
    try:
        newcomer = messages.Newcomer.FromString(content)
    except DecodeError as error:
        raise InvalidFieldError("begin.newcomer", f"expected a Newcomer: {error}") from error
    if not _NODE_ID.fullmatch(newcomer.node_id):
        expected = "expected 1 to 63 characters of a-z 0-9 -"
        raise InvalidFieldError("begin.newcomer.node_id", f"{expected}, got {newcomer.node_id[:80]!r}")
    return newcomer


def _disagreement(newcomer: messages.Newcomer, now: datetime) -> str:
    """Return what of a machine does not fit the deployment, and the remedy; empty: all fits."""
    if newcomer.version != __version__:
        return f"Baton is {newcomer.version[:40]} here and {__version__} at the router: install the same on both"
    ahead = newcomer.clock.ToDatetime(UTC) - now
    if abs(ahead) > _CLOCK_SKEW:
        apart = f"{abs(ahead).total_seconds():.0f} s {'ahead of' if ahead > timedelta() else 'behind'} the router's"
        return (
            f"this machine's clock is {apart}: set it (`sudo timedatectl set-ntp true`, `sudo sntp -sS time.apple.com`)"
        )
    return ""


async def _blockade(host: str, port: int) -> str:
    """Return what keeps this router from a machine, where it listens while it asks; empty: nothing does."""
    if not port:
        return ""
    try:
        async with asyncio.timeout(_DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except OSError as error:  # a timeout is one
        why = os.strerror(error.errno) if error.errno else "no answer"
        remedy = f"let it through the firewall there (`sudo ufw allow {port}/tcp`; macOS: allow incoming connections)"
        return f"the router does not reach port {port} of this machine at {host} ({why}): {remedy}"
    writer.close()
    return ""


def _is_member(policy: JoinPolicy, request: messages.JoinRequest, now: datetime) -> bool:
    shown, wanted = request.certificate, request.certificate_request
    return bool(shown) and policy.authority.knows(shown, wanted, node_id=request.node_id, now=now)


def join(policy: JoinPolicy, request: messages.JoinRequest, now: datetime) -> messages.JoinResponse:
    """Return what a machine gets that may join.

    Raises:
        InvalidFieldError: If its name or its request is none.
        NotFoundError: If there is no assignment for it.
        ConfigurationError: If the assignments cannot be read.
    """
    if not _NODE_ID.fullmatch(request.node_id):
        raise InvalidFieldError("node_id", f"expected 1 to 63 characters of a-z 0-9 -, got {request.node_id[:80]!r}")
    if request.node_id in {*RESERVED_NAMES, policy.server_name}:
        raise InvalidFieldError("node_id", f"{request.node_id!r} is the name of a part of the deployment, not a node's")
    assert policy.assignments_file is not None  # machines join by passes, which come with it
    assignment = assigned(read_assignments(policy.assignments_file), request.node_id)
    certificate = policy.authority.sign(
        request.certificate_request,
        node_id=request.node_id,
        server_name=policy.server_name,
        now=now,
        lifetime=policy.lifetime,
    )
    log.info("node_joined node=%s role=%s", request.node_id, assignment.role)
    return messages.JoinResponse(
        certificate=certificate,
        authorities=policy.authority.certificate,
        router_address=policy.router_address,
        cache_index_address=policy.cache_index_address,
        worker=messages.WorkerAssignment(role=role_to_proto(assignment.role), settings=assignment.settings),
    )


@asynccontextmanager
async def running_join_service(
    settings: JoinSettings,
    host: str,
    router_port: int,
    cache_index_address: str,
    pods: PodEnrolment | None = None,
    *,
    invitations: Invitations | None = None,
) -> AsyncIterator[GrpcServer]:
    """Serve, and announce if wanted, as long as the context lasts; raise ConfigurationError if that cannot be."""
    server = GrpcServer(host_port(host, settings.join_port), demands_certificate=False, limits=_LIMITS)
    policy = replace(_policy(settings, router_port, cache_index_address), pods=pods)
    servicer = JoinServicer(policy, AttemptLimit(time.monotonic), invitations or Invitations())
    server.add(SERVICE_NAME, partial(service.add_JoinServiceServicer_to_server, servicer))
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.drain, 0.0)
        if settings.announce_address:
            await stack.enter_async_context(announced(settings.announce_address, server.port))
        yield server


def _policy(settings: JoinSettings, router_port: int, cache_index_address: str) -> JoinPolicy:
    ca_file, key_file = settings.tls_ca_file, settings.join_authority_key_file
    secret_file, assignments_file = settings.join_secret_file, settings.join_assignments_file
    if not (ca_file and key_file):
        raise AssertionError("the settings have all files or no join port")
    if assignments_file:
        read_assignments(assignments_file)  # a mistake in it is told at the start
    cache_index_port = cache_index_address.rpartition(":")[2]
    secret = read_secret(secret_file) if secret_file else ""
    return JoinPolicy(
        JoinPasses(secret) if secret else None,
        Authority.read(ca_file, key_file),
        assignments_file,
        settings.tls_server_name,
        timedelta(days=settings.join_certificate_days),
        settings.join_router_address or f":{router_port}",
        settings.join_cache_index_address or (f":{cache_index_port}" if cache_index_port else ""),
        secret=secret,
    )


def host_of(peer: str) -> str:
    """Return the host of gRPC's name of a peer, e.g. "ipv4:10.0.0.7:50123"."""
    return peer.partition(":")[2].rpartition(":")[0] or peer
