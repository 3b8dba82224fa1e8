"""Requests that end passes or processes: each is tried once more by itself, then refused for a time.

A node says of a failed pass whose it was: the engine computes each of its requests alone, and fails that one. Of a
process that ended nobody knows, unless it had said that it computes a request alone. So a lost request is a suspect,
whose next attempt has passes of its own, announced beforehand; what was lost beside a request that was announced is no
suspect, and its attempt is not counted.
"""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from baton.errors import BatonError, NonFiniteLogitsError, PassFailedError, QuarantinedError, UnavailableError
from baton.gateway.generation.requests import GenerationState
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.generation_pb2 import SamplingParameters

log = logging.getLogger(__name__)

REFUSED_SECONDS = 600.0
"""After the last pass or process that a request has ended, for which it is refused, or suspected."""
MAX_CASES = 256
"""Requests of one tenant that are remembered; the one that is oldest goes first."""
_BLAMED_FALLS, _MOST_FALLS = 2, 4
"""Falls after which a request is refused: if the last was its own, and in any case."""
_FEW_STREAMS = 4
"""Of so many that a process took with it, each is a suspect; of more, those that had no token from it."""
_PROGRESS_TOKENS = 16
"""After so many tokens on one node a request did not fall for what it is."""


class NodeLostError(UnavailableError):
    """A decode node died under a stream. `is_blamed`: it was computing this one alone; None: that is not known."""

    def __init__(self, cause: BatonError, num_streams: int, *, is_blamed: bool | None) -> None:
        super().__init__(cause.message, reason=cause.reason, metadata=cause.metadata)
        self.num_streams, self.is_blamed = num_streams, is_blamed


@dataclass(slots=True)
class Case:
    """What is remembered of a request."""

    num_falls: int = 0
    """Passes and processes in a row that ended with it."""
    is_refused: bool = False
    fell_seconds: float = 0.0
    """When the last of them ended."""


class Quarantined(NamedTuple):
    """A request that is suspected or refused, for people who look at it."""

    tenant: str
    fingerprint: str
    falls: int
    is_refused: bool
    """Whether it is refused; else it is a suspect, and its next attempt is computed alone."""
    seconds_left: float
    """Until it is forgotten."""


class Quarantine:
    """Remembers, per tenant, which requests ended passes or processes. What it knows is this process's alone."""

    def __init__(self, clock: Callable[[], float], metrics: Metrics) -> None:
        self._clock, self._metrics = clock, metrics
        self.cases: dict[str, OrderedDict[str, Case]] = {}
        """By tenant and fingerprint, the last to fall at the end; without any, nobody need be checked or cleared."""

    def check(self, generation: GenerationState) -> None:
        """Raise QuarantinedError for a request that has been refused not long ago; suspect one that fell."""
        self._forget_expired()
        case = self._case(generation)
        if case is not None and case.is_refused:
            raise self._refusal(generation, case)
        generation.is_suspect = case is not None
        generation.num_falls = case.num_falls if case is not None else 0

    def judge(self, generation: GenerationState, error: BatonError) -> bool:
        """Return whether a failure counts as the request's own; raise QuarantinedError if it is refused now."""
        lost = error if isinstance(error, NodeLostError) else None
        is_blamed = isinstance(error, PassFailedError | NonFiniteLogitsError) or bool(lost and lost.is_blamed)
        self._forget_expired()
        case = self._case(generation) or Case()
        if case.is_refused:  # for one of its equals that were tried with it
            raise self._refusal(generation, case) from error
        if not is_blamed and (lost is None or lost.is_blamed is False):
            return lost is None
        self._note(generation, case)
        num_new_tokens = len(generation.output_token_ids) - generation.num_resumed_tokens
        num_falls = max(case.num_falls, generation.num_falls + 1)  # equal requests fall together, n of one for example
        case.num_falls = generation.num_falls = 1 if num_new_tokens >= _PROGRESS_TOKENS else num_falls
        is_prime = lost is not None and (lost.num_streams <= _FEW_STREAMS or not num_new_tokens)
        generation.is_suspect = is_blamed or is_prime or case.num_falls > 1
        generation.is_blamed = generation.is_blamed or is_blamed
        if case.num_falls >= (_BLAMED_FALLS if is_blamed else _MOST_FALLS):
            case.is_refused = True
            self._metrics.add(names.QUARANTINED, 1, {names.TENANT: generation.tenant})
            shown, name, tenant = fingerprint(generation), generation.name, generation.tenant
            log.error("request_quarantined fingerprint=%s generation=%s tenant=%s cause=%r", shown, name, tenant, error)
            raise self._refusal(generation, case) from error
        return is_blamed

    def clear(self, generation: GenerationState) -> None:
        """Forget a request that has ended well."""
        cases = self.cases.get(generation.tenant)
        if cases and cases.pop(fingerprint(generation), None) and not cases:
            del self.cases[generation.tenant]

    def entries(self) -> Sequence[Quarantined]:
        """Return all that are suspected or refused."""
        self._forget_expired()
        now = self._clock()
        return [
            Quarantined(tenant, name, case.num_falls, case.is_refused, case.fell_seconds + REFUSED_SECONDS - now)
            for tenant, cases in self.cases.items()
            for name, case in cases.items()
        ]

    def _case(self, generation: GenerationState) -> Case | None:
        cases = self.cases.get(generation.tenant)
        return cases.get(fingerprint(generation)) if cases else None

    def _note(self, generation: GenerationState, case: Case) -> None:
        """Remember a request that falls, as the last one."""
        case.fell_seconds = self._clock()
        cases = self.cases.setdefault(generation.tenant, OrderedDict())
        cases[fingerprint(generation)] = case
        cases.move_to_end(fingerprint(generation))
        if len(cases) > MAX_CASES:
            cases.popitem(last=False)

    def _forget_expired(self) -> None:
        since = self._clock() - REFUSED_SECONDS
        for tenant, cases in list(self.cases.items()):
            while cases and next(iter(cases.values())).fell_seconds <= since:
                cases.popitem(last=False)
            if not cases:
                del self.cases[tenant]

    def _refusal(self, generation: GenerationState, case: Case) -> QuarantinedError:
        name, seconds = fingerprint(generation), case.fell_seconds + REFUSED_SECONDS - self._clock()
        return QuarantinedError(
            f"this request has ended {case.num_falls} passes or processes of the model in a row, and is refused for "
            f"{seconds:.0f} s; fingerprint {name}",
            metadata={"fingerprint": name},
        )


def fingerprint(generation: GenerationState) -> str:
    """Return what tokens and parameters of a request come to, whatever its seed, which may have been drawn here."""
    prompt, sampling = generation.prompt, SamplingParameters()
    sampling.CopyFrom(prompt.sampling)
    sampling.ClearField("seed")
    digest = blake2b(prompt.model_revision_digest.encode(), digest_size=8)
    digest.update(array("q", prompt.token_ids).tobytes())
    digest.update(sampling.SerializeToString(deterministic=True))
    return digest.hexdigest()
