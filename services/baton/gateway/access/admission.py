"""What every request of either API passes: it is named, authenticated, counted, limited in time, and logged.

Its headers, or its metadata, say what the client wants of its latency. What the router has just refused is refused at
once, so that a flood of the same costs neither tokenizing nor a call.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from baton.capacity.objectives import TPOT_BOUNDS_SECONDS, TTFT_BOUNDS_SECONDS, Objectives
from baton.errors import AuthenticationError, InvalidFieldError, OverloadedError, UnavailableError
from baton.gateway.access.api_keys import ApiKey, ApiKeys
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS, KeyLimits
from baton.gateway.access.tenants import Places
from baton.telemetry import names
from baton.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,95}")

CANCELLED = "499"
"""Status of a request whose client went before its answer was complete; nginx's number."""


TTFT_HEADER = "x-baton-ttft-seconds"
"""Time to first token within which the request is good."""
TPOT_HEADER = "x-baton-tpot-seconds"
"""Mean time per output token within which it is."""

_BOUNDS = {TTFT_HEADER: TTFT_BOUNDS_SECONDS, TPOT_HEADER: TPOT_BOUNDS_SECONDS}
_MAX_CHARACTERS = 32

WAIT_SECONDS = "wait_seconds"
"""Key of a refusal's metadata: the same, not rounded."""
SHARE_OF_WAIT = 0.5
"""A refusal holds for so much of the time after which its request would be placed: the next one asks the router."""
LONGEST_SECONDS = 0.1
"""Nor longer than that: a refusal says what is, and the nodes it is about must never stand idle because of it."""
MAX_TOLD_FIELDS = 256
"""Names of fields that are left out which a process logs; clients choose them."""
MAX_KEYS = 1024
"""API keys, each with a model, remembered; the oldest refusal goes first."""

_REASONS = ("OVERLOADED", "FAIR_SHARE")
ANYBODY = ApiKey("", is_admin=True)
"""Stands for the key of whoever asks where there are none."""


@dataclass(slots=True)
class RequestContext:
    """A request on its way. The API fills in who asks and what became of it; generations add what they generated."""

    route: str = ""
    """Path or method that serves it, without what varies; empty if there is none."""

    request_id: str = ""
    """Name of the request, the client's own or a random one."""
    model: str = ""
    """Model that it is for, as the client calls it; empty: the only one."""
    arrival_seconds: float = 0.0
    """When the request was complete, by the event loop's clock."""
    status: str = CANCELLED
    """HTTP status, or name of the gRPC status; of a stream that broke off, the one that it began with."""
    error_code: str = ""
    """Code of the error that ended it; empty if it was served."""
    key: ApiKey = ANYBODY
    """The API key that was shown; without keys, one that nobody needs to show."""
    objectives: Objectives = Objectives()
    """What the client wants of the latency; where it says nothing, the router's count."""
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    """Tokens generated, those of broken answers included."""
    num_cached_tokens: int = 0
    """Tokens of all prompts that were found in a prefix cache."""
    finish_reasons: list[str] = field(default_factory=list)
    """Why each choice ended, in the order in which they did."""
    answer_id: str = ""
    """What its API calls the answer; empty: as the request."""
    num_events: int = 0
    """Events of the stream so far, where the API numbers them."""
    first_token_seconds: float | None = None
    """When the first token came, by the event loop's clock."""
    ignored: list[str] = field(default_factory=list)
    """Fields of the request that are left out, without indices."""
    begin: Callable[[int, int], None] = lambda _num_generations, _num_prompt_tokens: None
    """Takes the places and tokens of its generations, once they are known; raises what `Admission.slot` does, and
    InvalidFieldError where there are not so many places."""

    @property
    def key_name(self) -> str:
        """Return the name of the API key; empty without keys."""
        return self.key.name


def accept_request_id(given: str) -> str:
    """Return the client's name of its request, or a random one; raise InvalidFieldError if it is no name."""
    if not given:
        return secrets.token_hex(16)
    if not _REQUEST_ID.fullmatch(given):
        problem = 'expected 1 to 96 letters, digits and "._:-", beginning with a letter or digit'
        raise InvalidFieldError(REQUEST_ID_HEADER, problem)
    return given


def objectives_of(headers: Mapping[str, str]) -> Objectives:
    """Return what headers, by lower-case name, say; raise InvalidFieldError for what is no number or out of range."""
    return Objectives(_seconds(headers, TTFT_HEADER), _seconds(headers, TPOT_HEADER))


def _seconds(headers: Mapping[str, str], name: str) -> float:
    text = headers.get(name)
    if text is None:
        return 0.0
    low, high = _BOUNDS[name]
    try:
        seconds = float(text[:_MAX_CHARACTERS])
    except ValueError:
        seconds = 0.0
    if not low <= seconds <= high:  # also refuses NaN
        given = text[:_MAX_CHARACTERS]
        raise InvalidFieldError(name, f"expected a number of seconds, {low:g} to {high:g}, got {given!r}")
    return seconds


def generation_name(request_id: str) -> str:
    """Return the name that nodes see: it begins with the request's own, and no two requests share it."""
    return f"{request_id}.{secrets.token_hex(4)}"


class AccessLog:
    """Tells logs and metrics of each request of either API, whatever becomes of it."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """Make it."""
        self._metrics, self._clock = metrics, clock
        self._told_fields: set[str] = set()

    @contextmanager
    def watch(self, context: RequestContext) -> Iterator[None]:
        """Watch one request from here to its end; its `status` is then what the client saw of it."""
        context.arrival_seconds = self._clock()
        self._metrics.add_current(names.GATEWAY_ACTIVE_REQUESTS, 1)
        try:
            yield
        finally:
            self._metrics.add_current(names.GATEWAY_ACTIVE_REQUESTS, -1)
            seconds = self._clock() - context.arrival_seconds
            labels = {names.HTTP_ROUTE: context.route or "unknown", names.STATUS: context.status}
            self._metrics.record(names.GATEWAY_REQUEST_DURATION, seconds, labels)
            self._tell_ignored(context)
            if log.isEnabledFor(logging.DEBUG):
                log.debug(_line(context, seconds))

    def _tell_ignored(self, context: RequestContext) -> None:
        """Count fields that were left out; each is logged once, as long as they are few."""
        for name in context.ignored:
            self._metrics.add(names.GATEWAY_IGNORED_FIELDS, 1, {names.FIELD: name})
            if name not in self._told_fields and len(self._told_fields) < MAX_TOLD_FIELDS:
                self._told_fields.add(name)
                log.info("field_ignored field=%r route=%s", name, context.route)


def _line(context: RequestContext, seconds: float) -> str:
    first = context.first_token_seconds
    first_text = f"{first - context.arrival_seconds:.4f}" if first is not None else "-"
    times = f"seconds={seconds:.4f} first_token_seconds={first_text}"
    return (
        f"request_ended request={context.request_id or '-'} key={context.key_name or '-'} route={context.route or '-'} "
        f"status={context.status} error={context.error_code or '-'} {times} "
        f"prompt_tokens={context.num_prompt_tokens} completion_tokens={context.num_completion_tokens}"
    )


class Admission:
    """Bounds what is asked for through both APIs, each model by itself. Used on the event loop only.

    `make_places` makes those of a model. `key_places` are those that the keys of one name have for all models together;
    `root_of` returns the model that answers for a name, empty for names that nobody serves, which share places.
    """

    def __init__(
        self,
        make_places: Callable[[str], Places],
        key_places: Places,
        limits: KeyLimits | None,
        root_of: Callable[[str], str],
    ) -> None:
        self._make_places = make_places
        self._places: dict[str, Places] = {}
        self._key_places, self._limits = key_places, limits
        self._root_of = root_of

    def places_of(self, model: str) -> Places:
        """Return the places of a model: taken by its choices that are in work, those that wait included."""
        if model not in self._places:
            self._places[model] = self._make_places(model)
        return self._places[model]

    @contextmanager
    def slot(self, context: RequestContext) -> Iterator[None]:
        """Hold a request's place, on its key's account; raise OverloadedError, saying until when, if there is none."""
        name, limits, model = context.key_name, self._limits, self._root_of(context.model)
        places = self.places_of(model)
        with self._key_places.hold(context.key) as add_own, places.hold(context.key) as add_places:
            if limits is not None:
                limits.check(name)
                limits.spend(name, num_requests=1)

            def begin(num_generations: int, num_prompt_tokens: int) -> None:
                if limits is not None:
                    limits.check(name, num_requests=0)
                if num_generations > 1:
                    add_own(num_generations - 1)
                    add_places(num_generations - 1)
                if limits is not None:
                    limits.spend(name, num_requests=num_generations - 1, num_tokens=num_prompt_tokens)

            context.begin = begin
            try:
                yield
            finally:
                if limits is not None:
                    limits.spend(name, num_tokens=context.num_completion_tokens)


class Deadlines:
    """Limits requests of both APIs. Used on the event loop only."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._running: dict[asyncio.Timeout, ApiKey] = {}
        self._revoked: set[asyncio.Timeout] = set()
        self._is_cut = False

    @asynccontextmanager
    async def limit(self, key: ApiKey) -> AsyncIterator[None]:
        """Run a request; raise TimeoutError, UnavailableError, AuthenticationError if time, gateway, key ends first."""
        timeout = asyncio.timeout(0 if self._is_cut else self._timeout_seconds)
        try:
            async with timeout:
                self._running[timeout] = key
                yield
        except TimeoutError:
            if timeout in self._revoked:
                raise AuthenticationError("the API key is no longer known here") from None
            if self._is_cut and timeout.expired():
                raise UnavailableError("the gateway is shutting down", reason="DRAINING") from None
            raise
        finally:
            self._running.pop(timeout, None)
            self._revoked.discard(timeout)

    def cut(self) -> None:
        """End all requests: each is told why."""
        self._is_cut = True
        self._end(self._running)

    def end_revoked(self, is_known: Callable[[ApiKey], bool]) -> None:
        """End the requests of keys that are no longer known."""
        revoked = [timeout for timeout, key in self._running.items() if not is_known(key)]
        self._revoked.update(revoked)
        self._end(revoked)

    def _end(self, timeouts: Iterable[asyncio.Timeout]) -> None:
        now_seconds = asyncio.get_running_loop().time()
        for timeout in timeouts:
            if not timeout.expired():
                timeout.reschedule(now_seconds)


class _Refusal(NamedTuple):
    error: OverloadedError
    num_bytes: int
    """Size of the request; larger ones would fare no better."""
    ends_at_seconds: float
    """When a request of its size would be placed."""
    forgotten_at_seconds: float


class RecentRefusals:
    """The last refusal of each API key by model. Used on the event loop only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: OrderedDict[tuple[str, str], _Refusal] = OrderedDict()

    @contextmanager
    def watch(self, key_name: str, num_bytes: int, *, model: str = "", has_objectives: bool) -> Iterator[None]:
        """Answer a model's request; raise OverloadedError at once if the router just refused the key one no larger."""
        if not has_objectives:
            self._check((key_name, model), num_bytes)
        try:
            yield
        except OverloadedError as error:
            if error.reason in _REASONS and not has_objectives:
                self._note((key_name, model), num_bytes, error)
            raise

    def _check(self, asked: tuple[str, str], num_bytes: int) -> None:
        refusal = self._refusals.get(asked)
        if refusal is None or num_bytes < refusal.num_bytes:
            return
        now = self._clock()
        if now >= refusal.forgotten_at_seconds:
            del self._refusals[asked]
            return
        whole_seconds = max(1, math.ceil(refusal.ends_at_seconds - now))
        metadata = {RETRY_AFTER_SECONDS: str(whole_seconds)}
        raise OverloadedError(refusal.error.message, reason=refusal.error.reason, metadata=metadata)

    def _note(self, asked: tuple[str, str], num_bytes: int, error: OverloadedError) -> None:
        if WAIT_SECONDS not in error.metadata:
            return  # one of these
        now, wait_seconds = self._clock(), float(error.metadata[WAIT_SECONDS])
        forgotten_at = now + min(LONGEST_SECONDS, SHARE_OF_WAIT * wait_seconds)
        self._refusals.pop(asked, None)
        self._refusals[asked] = _Refusal(error, num_bytes, now + wait_seconds, forgotten_at)
        if len(self._refusals) > MAX_KEYS:
            self._refusals.popitem(last=False)


class AccessControl(NamedTuple):
    """Who may ask, how much at once and for how long, and the record of it."""

    keys: ApiKeys | None
    """Names the caller; None: everybody may ask everything."""
    admission: Admission
    deadlines: Deadlines
    log: AccessLog
    refusals: RecentRefusals
    """Answers for the router where it would refuse again."""

    def authenticate(self, headers: Mapping[str, str]) -> ApiKey:
        """Return the key that a request shows, or raise AuthenticationError; without keys, one that nobody shows."""
        return self.keys.authenticate(headers) if self.keys is not None else ANYBODY

    @asynccontextmanager
    async def limit(self, key: ApiKey) -> AsyncIterator[None]:
        """Run a request; raise TimeoutError, UnavailableError, AuthenticationError if time, gateway, key ends first."""
        if self.keys is not None and not self.keys.knows(key):  # it was, before the request's body came
            raise AuthenticationError("the API key is no longer known here")
        async with self.deadlines.limit(key):
            yield

    async def watch_keys(self) -> None:
        """Follow the file of keys for ever; requests of keys that are taken away end."""
        if self.keys is not None:
            await self.keys.watch(partial(self.deadlines.end_revoked, self.keys.knows))
