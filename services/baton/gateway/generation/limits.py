"""Bounds of sampling parameters, checked at the door, and the seeds of choices."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from hashlib import blake2b

from baton.errors import InvalidFieldError
from baton.v1.generation_pb2 import SamplingParameters

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""Longest stop string: as much text may have to be held back."""
MAX_CACHE_SALT_BYTES = 128
MAX_PRIORITY = 100

MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKENS = 64
MAX_TOP_LOGPROBS = 20
MAX_CONSTRAINT_BYTES = 256 * 1024


def check_sampling(sampling: SamplingParameters, vocabulary_size: int) -> None:
    """Check every bound of generation.proto.

    Raises:
        InvalidFieldError: Naming the first field out of bounds, as the proto calls it.
    """
    _check_range("temperature", sampling.temperature, 0.0, 100.0)
    if sampling.HasField("top_p"):
        _check_range("top_p", sampling.top_p, 0.0, 1.0, is_low_excluded=True)
    _check_range("top_k", sampling.top_k, 0, math.inf)
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.HasField("repetition_penalty"):
        _check_range("repetition_penalty", sampling.repetition_penalty, 0.0, 10.0, is_low_excluded=True)
    _check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    _check_counts(sampling)
    _check_form(sampling)
    _check_tokens(sampling, vocabulary_size)


def check_stop(stops: Sequence[str]) -> None:
    """Check stop strings.

    Raises:
        InvalidFieldError: If there are too many, or one is empty or too long.
    """
    if len(stops) > MAX_STOP_STRINGS:
        raise InvalidFieldError("stop", f"expected at most {MAX_STOP_STRINGS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise InvalidFieldError("stop", f"expected strings of 1 to {MAX_STOP_CHARACTERS} characters")


def check_cache_salt(salt: str) -> None:
    """Check the name of a prefix cache.

    Raises:
        InvalidFieldError: If it is too long.
    """
    if len(salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidFieldError("cache_salt", f"expected at most {MAX_CACHE_SALT_BYTES} bytes")


def check_priority(priority: int) -> None:
    """Check whose turn a request is.

    Raises:
        InvalidFieldError: If the priority is out of range.
    """
    if abs(priority) > MAX_PRIORITY:
        raise InvalidFieldError("priority", f"expected {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}")


def draw_seed() -> int:
    """Return a random seed: 0 to 2**63 - 1."""
    return secrets.randbits(63)


def choice_sampling(sampling: SamplingParameters, choice: int) -> SamplingParameters:
    """Return how one of several choices is sampled: the first has the request's seed, the others depend on it alone."""
    if choice == 0:
        return sampling
    own = SamplingParameters()
    own.CopyFrom(sampling)
    digest = blake2b(f"baton/choice\0{sampling.seed}\0{choice}".encode(), digest_size=8).digest()
    own.seed = int.from_bytes(digest, "little") >> 1
    return own


def _check_counts(sampling: SamplingParameters) -> None:
    _check_range("min_token_count", sampling.min_token_count, 0, math.inf)
    if sampling.HasField("max_token_count"):
        _check_range("max_token_count", sampling.max_token_count, 1, math.inf)
        if sampling.min_token_count > sampling.max_token_count:
            problem = f"{sampling.min_token_count} is more than the limit of {sampling.max_token_count} tokens"
            raise InvalidFieldError("min_token_count", problem)
    if sampling.HasField("top_logprob_count"):
        _check_range("top_logprob_count", sampling.top_logprob_count, 0, MAX_TOP_LOGPROBS)
    if sampling.HasField("prompt_logprob_count"):
        _check_range("prompt_logprob_count", sampling.prompt_logprob_count, 0, MAX_TOP_LOGPROBS)


def _check_form(sampling: SamplingParameters) -> None:
    """Check what needs no compiler; the nodes have it."""
    if sampling.HasField("structured_output"):
        kind = sampling.structured_output.WhichOneof("constraint")
        if kind is None:
            raise InvalidFieldError("structured_output", "expected one of json_schema, regex, lark")
        num_bytes = len(getattr(sampling.structured_output, kind).encode())
        if not 1 <= num_bytes <= MAX_CONSTRAINT_BYTES:
            problem = f"expected 1 to {MAX_CONSTRAINT_BYTES} bytes, got {num_bytes}"
            raise InvalidFieldError(f"structured_output.{kind}", problem)


def _check_tokens(sampling: SamplingParameters, vocabulary_size: int) -> None:
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidFieldError("logit_bias", f"expected at most {MAX_LOGIT_BIAS_ENTRIES} entries")
    for bias in sampling.logit_bias.values():
        _check_range("logit_bias", bias, -100.0, 100.0)
    check_token_ids("logit_bias", list(sampling.logit_bias), vocabulary_size)
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidFieldError("stop_token_ids", f"expected at most {MAX_STOP_TOKENS} entries")
    check_token_ids("stop_token_ids", sampling.stop_token_ids, vocabulary_size)


def check_token_ids(field: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    """Check that tokens are in the vocabulary.

    Raises:
        InvalidFieldError: Naming the field and the smallest or largest token outside.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocabulary_size:
            raise InvalidFieldError(field, f"token id {token_id} is not in 0 to {vocabulary_size - 1}")


def _check_range(field: str, value: float, low: float, high: float, *, is_low_excluded: bool = False) -> None:
    is_low_enough = value > low if is_low_excluded else value >= low
    if not (is_low_enough and value <= high):  # also refuses NaN
        bounds = f"{'above ' if is_low_excluded else ''}{low:g}" + (" or more" if high == math.inf else f" to {high:g}")
        raise InvalidFieldError(field, f"expected {bounds}, got {value!r}")
