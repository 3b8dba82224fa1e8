"""Who may call what, and which node may have which KV.

One table, method by caller, and the names in certificates by which callers are told apart; and what routers grant to a
request, of a tenant, from one node to another, for a while.

A certificate names a process, not its part: what a node may do next is the router's to say, not its certificate's. Its
common name is the id of a node, or one of the names below. A process of the deployment whose certificate has none of
its own, as where all share one, speaks for any of them; the name that all servers bear is none of its own either.
Without TLS, on loopback or by `--insecure`, whoever connects does.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import NoReturn

from baton.errors import ForbiddenError
from baton.internal.v1.kv_pb2 import TransferClaims, TransferGrant

log = logging.getLogger(__name__)


class Party(Enum):
    """What a caller is; the value is the common name of its certificate, but for nodes and those who show none."""

    GATEWAY = "gateway"
    ROUTER = "router"
    CACHE_INDEX = "cache-index"
    """Knows which node holds which block."""
    ADMIN = "admin"
    """A person, by commands such as `baton nodes`."""
    NODE = "node"
    """Computes; its certificate bears its id. The agent of its machine has the same."""
    JOINER = "joiner"
    """Shows no certificate to the port where machines join."""
    CLIENT = "client"
    """Shows no certificate to the public API, which asks for API keys."""


_INTERNAL = "baton.internal.v1."
METHODS: Mapping[str, frozenset[Party]] = {
    f"{_INTERNAL}RouterService/Register": frozenset({Party.NODE}),
    f"{_INTERNAL}RouterService/Place": frozenset({Party.GATEWAY, Party.ADMIN}),
    f"{_INTERNAL}RouterService/ListNodes": frozenset({Party.GATEWAY, Party.ADMIN}),
    f"{_INTERNAL}RouterService/Explain": frozenset({Party.GATEWAY, Party.ADMIN}),
    f"{_INTERNAL}CacheIndexService/Publish": frozenset({Party.NODE}),
    f"{_INTERNAL}CacheIndexService/Lookup": frozenset({Party.ROUTER}),
    f"{_INTERNAL}DecodeService/Generate": frozenset({Party.GATEWAY}),
    f"{_INTERNAL}DecodeService/Serve": frozenset({Party.GATEWAY}),
    f"{_INTERNAL}PrefillService/Prefill": frozenset({Party.NODE}),
    f"{_INTERNAL}PrefillService/ProbeLink": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}BlockService/PullBlocks": frozenset({Party.NODE}),
    f"{_INTERNAL}BlockService/ProbeLink": frozenset({Party.NODE}),
    f"{_INTERNAL}WeightService/GetManifest": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}WeightService/FetchFile": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}WorkerService/Pause": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}WorkerService/Resume": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}WorkerService/FetchTokenizer": frozenset({Party.GATEWAY}),
    f"{_INTERNAL}ModelService/ListModels": frozenset({Party.GATEWAY, Party.ADMIN}),
    f"{_INTERNAL}ModelService/ChangeModel": frozenset({Party.GATEWAY, Party.ADMIN}),
    f"{_INTERNAL}ModelService/Supervise": frozenset({Party.NODE}),
    f"{_INTERNAL}AgentService/GetStatus": frozenset({Party.NODE, Party.ADMIN}),
    f"{_INTERNAL}JoinService/Join": frozenset({Party.JOINER}),
    f"{_INTERNAL}JoinService/Enter": frozenset({Party.JOINER}),
    f"{_INTERNAL}JoinService/Invite": frozenset({Party.GATEWAY, Party.ADMIN}),
    "baton.v1.GenerationService/*": frozenset({Party.CLIENT}),
    "grpc.health.v1.Health/*": frozenset(Party),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": frozenset({Party.ADMIN, Party.CLIENT}),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": frozenset({Party.ADMIN, Party.CLIENT}),
}
"""Who may call each method, `*` being all of a service; one that is not named, nobody.

A node may pause, publish and register itself alone, and ask its own agent: `Caller.check_speaks_for`.
"""


def parties_of(path: str) -> frozenset[Party]:
    """Return who may call a method, given as "/package.Service/Method"."""
    path = path.removeprefix("/")
    return METHODS.get(path) or METHODS.get(f"{path.rpartition('/')[0]}/*", frozenset())


DEPLOYMENT = "baton"
"""Common name of a certificate that processes share; one without a common name is such a one, too."""
OWN = "--"
"""Between a machine's name and that of a further worker of it, which shows the machine's certificate; no machine that
joins has it in its name."""
_NAMED = {party.value: party for party in (Party.GATEWAY, Party.ROUTER, Party.CACHE_INDEX, Party.ADMIN)}
RESERVED_NAMES = frozenset({DEPLOYMENT, *(party.value for party in Party)})
"""No node can be called so."""
SINGLE_NAMES = frozenset(_NAMED)
"""Those of them that a certificate gives to one process."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    party: Party | None
    """What it is; None: a process of the deployment, whichever."""
    node_id: str = ""
    """Of a node; empty otherwise."""

    def __str__(self) -> str:
        name = self.party.value if self.party else "deployment"
        return f"{name} {self.node_id}".rstrip()

    def check_may_call(self, path: str) -> None:
        """Raise ForbiddenError unless the table lets the caller call a method."""
        if self.party is None or self.party in parties_of(path):
            return
        log.warning("call_refused caller=%r method=%s", str(self), path)
        remedy = f"; a certificate that processes share is called {DEPLOYMENT}, as servers are, or nothing"
        raise ForbiddenError(f"{self} may not call {path.rpartition('.')[2]}{remedy if self.node_id else ''}")

    def check_speaks_for(self, node_id: str) -> None:
        """Raise ForbiddenError if what the caller says, or asks, of a node is about another one than itself."""
        is_own = node_id == self.node_id or node_id.startswith(f"{self.node_id}{OWN}")
        if self.party is Party.NODE and not is_own:
            log.warning("call_refused caller=%r node=%r", str(self), node_id[:64])
            remedy = "its --node-id is the name in its certificate"
            raise ForbiddenError(f"{self} does not speak for node {node_id[:64]}: {remedy}")


def caller_of(
    common_names: Sequence[str], *, without_certificate: Party | None = None, server_name: str = DEPLOYMENT
) -> Caller:
    """Return who calls over TLS, or `without_certificate`; raise ForbiddenError if a certificate has several names."""
    if without_certificate is not None:
        return Caller(without_certificate)
    names = list(filter(None, common_names))  # gRPC tells of a certificate without a name as one with an empty one
    if len(names) > 1:
        raise ForbiddenError(f"a certificate names one process, this one {len(names)}")
    name = names[0] if names else DEPLOYMENT
    if name in _NAMED:
        return Caller(_NAMED[name])
    return Caller(None) if name in (DEPLOYMENT, server_name) else Caller(Party.NODE, name)


MAX_CLOCK_LEAD_NANOSECONDS = 86_400 * 10**9
"""What another machine's clock may be ahead of this one's. Epochs, which are times, order processes of one name, and
orders to a machine: none may lie so far ahead that nothing later comes after it."""
ROUTER_NAMES = (Party.ROUTER.value, DEPLOYMENT)
"""What a router's certificate may have before the name of servers, NAME.SERVER; no node's has either."""
_CALLER: ContextVar[Caller | None] = ContextVar("baton_caller", default=None)


def set_caller(caller: Caller) -> None:
    """Make `current_caller` return a caller in this task or thread, which serves one call, and in tasks begun in it."""
    _CALLER.set(caller)


def current_caller() -> Caller:
    """Return who made the call that is being served; without TLS, a process of the deployment."""
    return _CALLER.get() or Caller(None)


KEY_BYTES = 32
LIFETIME_SECONDS = 600.0
"""From a placement until the last of its streams may begin; a prompt that waits longer is computed where it decodes."""
SKEW_SECONDS = 300.0
"""By how much the clocks of routers and nodes may differ."""
MAX_USES = 4
"""Streams that a sender begins for one grant: a receiver asks twice, and may be sent from the fast path to gRPC."""
_MAX_REMEMBERED = 65_536
NOT_GRANTED = "TRANSFER_NOT_GRANTED"


def digest_of(content: str | bytes) -> bytes:
    """Return the SHA-256 by which claims name a salt, or block hashes."""
    return sha256(content.encode() if isinstance(content, str) else content).digest()


def sign_grant(claims: TransferClaims, source_key: bytes, destination_key: bytes) -> TransferGrant:
    """Return the grant of a transfer between the nodes that have told these keys."""
    said = claims.SerializeToString()
    ask_code, answer_code = _code(source_key, b"ask", said), _code(source_key, b"answer", said)
    take_code = _code(destination_key, b"take", ask_code + answer_code + said)
    return TransferGrant(claims=said, ask_code=ask_code, answer_code=answer_code, take_code=take_code)


class TransferGate:
    """Checks at a node what routers have granted. Safe from any thread.

    A node draws a key at its start and tells it to every router as it registers, and to nobody else. So a router that
    has just started signs at once what nodes take, several need not know of each other, and a key ends with its
    process. A member that no router has sent can neither ask a node for KV nor pass for a sender of it (kv.proto).
    `on_refused` is told of each refusal, the claim that differs; `key` is the node's, None: it is drawn.
    """

    def __init__(
        self,
        on_refused: Callable[[str], None] = lambda _field: None,
        key: bytes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.key = key or secrets.token_bytes(KEY_BYTES)
        """What routers are to know, and nobody else."""
        self._on_refused = on_refused
        self._now = now
        self._lock = threading.Lock()
        self._uses: dict[bytes, int] = {}

    def check_asked(self, grant: TransferGrant, **asked: str | bytes | int) -> bytes:
        """Check, as the sender, that the current caller may have what it asks for.

        Returns what to answer, by which it knows this node. Raises ForbiddenError TRANSFER_NOT_GRANTED; the claim is
        named. NOT_ALLOWED if another node was granted it.
        """
        claims = self._checked(grant, _code(self.key, b"ask", grant.claims), grant.ask_code, asked)
        current_caller().check_speaks_for(claims.destination_node_id)
        with self._lock:
            uses = self._uses[grant.ask_code] = self._uses.pop(grant.ask_code, 0) + 1  # the last used are last
            if len(self._uses) > _MAX_REMEMBERED:
                del self._uses[next(iter(self._uses))]
        if uses > MAX_USES:
            self._refuse("ask_code", f"it has been shown {MAX_USES} times")
        return _code(self.key, b"answer", grant.claims)

    def check_taken(self, grant: TransferGrant, **asked: str | bytes | int) -> TransferGrant:
        """Check that KV to be asked for was granted; return what to show its sender. Raises ForbiddenError."""
        code = _code(self.key, b"take", grant.ask_code + grant.answer_code + grant.claims)
        self._checked(grant, code, grant.take_code, asked)
        return TransferGrant(claims=grant.claims, ask_code=grant.ask_code)

    def _checked(
        self, grant: TransferGrant, code: bytes, shown: bytes, asked: dict[str, str | bytes | int]
    ) -> TransferClaims:
        if not hmac.compare_digest(code, shown):
            self._refuse("claims", "no router has signed them for this process")
        claims = TransferClaims.FromString(grant.claims)
        if claims.expires_at.seconds + SKEW_SECONDS < self._now():
            self._refuse("expires_at", f"it has passed at {claims.expires_at.ToJsonString()}, and clocks are compared")
        for field, value in asked.items():
            if getattr(claims, field) != value:
                self._refuse(field, "it was granted for another one than is asked for")
        return claims

    def _refuse(self, field: str, problem: str) -> NoReturn:
        log.warning("transfer_refused caller=%r field=%s", str(current_caller()), field)
        self._on_refused(field)
        raise ForbiddenError(f"transfer.{field}: {problem}", reason=NOT_GRANTED, metadata={"field": field})


def _code(key: bytes, word: bytes, said: bytes) -> bytes:
    return hmac.digest(key, word + b"\0" + said, "sha256")  # which every language has
