"""The errors that Baton raises on purpose.

```
BatonError
├── InvalidFieldError        a request field has a value that cannot be served          INVALID_ARGUMENT
├── AuthenticationError      a caller shows no key or token, or one that is not known   UNAUTHENTICATED
├── ForbiddenError           a caller may not call this, or speak for another node       PERMISSION_DENIED
├── NotFoundError            a model or node does not exist                             NOT_FOUND
├── MismatchError            two nodes disagree on a field                              FAILED_PRECONDITION
├── OutOfMemoryError         a request can never fit                                    RESOURCE_EXHAUSTED
├── OverloadedError          a request does not fit now, or would come too late         RESOURCE_EXHAUSTED
├── UnavailableError         a node or service cannot take requests now                 UNAVAILABLE
├── AttemptReusedError       (request_id, attempt) is running already                   ABORTED
├── SupersededError          another process has this node's name                       ABORTED
├── StreamBrokenError        a KV stream broke its own rules                            DATA_LOSS
├── PassFailedError          a pass of the model fails whenever it computes a request   INTERNAL
├── QuarantinedError         a request has ended passes or processes, and is refused    FAILED_PRECONDITION
├── NonFiniteLogitsError     a model gave no number to choose a token by                INTERNAL
├── ConstraintError          an output cannot be continued in its form                  INTERNAL
└── ConfigurationError       a service cannot start with its settings                   (exit status 2)
```

`baton.rpc.status` alone maps them to gRPC.
"""

from __future__ import annotations

import math


class BatonError(Exception):
    """An expected failure; `reason` is its stable, upper-case name on the wire."""

    reason = "INTERNAL"

    def __init__(self, message: str, *, reason: str | None = None, metadata: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or type(self).reason
        self.metadata = metadata or {}


class InvalidFieldError(BatonError):
    """A field of a request has a value that cannot be served."""

    reason = "INVALID_FIELD"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}", metadata={"field": field})
        self.field = field
        self.problem = problem
        """What is wrong with the field, without its name."""

    def renamed(self, field: str) -> InvalidFieldError:
        """Return the same problem of a field that the caller knows by another name."""
        return InvalidFieldError(field, self.problem)


def check_range(field: str, value: float, low: float, high: float = math.inf, *, is_low_excluded: bool = False) -> None:
    """Raise InvalidFieldError if a field's number is not in its range."""
    is_low_enough = value > low if is_low_excluded else value >= low
    if not (is_low_enough and value <= high):  # also refuses NaN
        bounds = f"{'above ' if is_low_excluded else ''}{low:g}" + (" or more" if high == math.inf else f" to {high:g}")
        raise InvalidFieldError(field, f"expected {bounds}, got {value!r}")


class AuthenticationError(BatonError):
    """A caller shows no API key or join token, or one that is not known."""

    reason = "INVALID_API_KEY"


class ForbiddenError(BatonError):
    """A process of the deployment calls what is not for it, or speaks for another."""

    reason = "NOT_ALLOWED"


class NotFoundError(BatonError):
    """Something named in a request does not exist."""

    reason = "MODEL_NOT_FOUND"


class MismatchError(BatonError):
    """Two nodes disagree on a field that must be equal."""

    reason = "KV_LAYOUT_MISMATCH"

    def __init__(self, field: str, expected: object, actual: object, *, reason: str | None = None) -> None:
        super().__init__(
            f"{field}: this node has {expected!r}, the peer has {actual!r}",
            reason=reason,
            metadata={"field": field, "expected": str(expected), "actual": str(actual)},
        )
        self.field = field


class OutOfMemoryError(BatonError):
    """A request needs more KV blocks than the node has."""

    reason = "OUT_OF_MEMORY"


class OverloadedError(BatonError):
    """A request does not fit now; it may later."""

    reason = "QUEUE_FULL"


class UnavailableError(BatonError):
    """A node or service cannot take requests now."""

    reason = "UNAVAILABLE"


class AttemptReusedError(BatonError):
    """An attempt at a request is running already under the same number."""

    reason = "ATTEMPT_REUSED"


class SupersededError(BatonError):
    """Another process is registered under the same node id."""

    reason = "NODE_SUPERSEDED"


class StreamBrokenError(BatonError):
    """A KV stream ended early or broke its own rules: gap, overlap, checksum, count."""

    reason = "KV_STREAM_BROKEN"


class PassFailedError(BatonError):
    """A pass that computed this request, and no other, has failed."""

    reason = "PASS_FAILED"


class QuarantinedError(BatonError):
    """A request has ended passes or processes wherever it was tried; its fingerprint is in the metadata."""

    reason = "QUARANTINED"


class NonFiniteLogitsError(BatonError):
    """A model's logits at one position are NaN or infinite: no token can be chosen by them."""

    reason = "NON_FINITE_LOGITS"


class ConstraintError(BatonError):
    """An output that must have a form cannot be continued in it."""

    reason = "STRUCTURED_OUTPUT_FAILED"


class ConfigurationError(BatonError):
    """A service cannot start with the settings it was given; the message names the key."""

    reason = "INVALID_CONFIGURATION"
