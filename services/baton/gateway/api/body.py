"""What the bodies of all REST APIs have in common: decoding, refusals, and fields that say how to choose tokens."""

from __future__ import annotations

import codecs
import gc
import re
from collections.abc import Collection, Iterator, Mapping, Sized
from contextlib import contextmanager
from hashlib import blake2b
from typing import TypeVar

import msgspec

from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import ApiError, invalid, missing, refused, unsupported
from baton.gateway.api.tolerance import Ignore, Unserved, unrecognized, without_unserved
from baton.gateway.generation.preparation import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

MAX_CHOICES = 16

FIELD_NAMES = {"max_token_count": "max_tokens", "min_token_count": "min_tokens", "top_logprob_count": "top_logprobs"}
"""Names that REST APIs have for fields of generation.proto, where they differ."""

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TOKEN_ID = re.compile(r"-?(0|[1-9][0-9]{0,9})")
_SAMPLING_FIELDS = (
    *("temperature", "top_p", "repetition_penalty", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos"),
    *("seed", "top_k"),
)
"""Fields that bodies and generation.proto call the same."""

AnyBody = TypeVar("AnyBody", bound=msgspec.Struct)


def decode_body(data: bytes, body_type: type[AnyBody], unserved: Unserved, ignore: Ignore) -> AnyBody:
    """Return a body; what its fields may hold is left to check.

    `unserved` are fields that others serve; `ignore` is told which fields are left out. Raises ApiError 400, naming the
    parameter that is missing, of a wrong type or not served.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not valid UTF-8: {error.reason} at byte {error.start}") from error
    try:
        with _no_collection():
            try:
                body = msgspec.json.decode(data, type=body_type)
            except msgspec.ValidationError as error:
                if not _UNKNOWN.match(str(error)):
                    raise
                known = without_unserved(msgspec.json.decode(data), body_type, unserved, ignore)
                body = msgspec.json.decode(msgspec.json.encode(known), type=body_type)
    except msgspec.ValidationError as error:
        raise _schema_error(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from error
    if getattr(body, "stream_options", None) is not None and not getattr(body, "stream", None):
        raise refused("stream_options", "`stream_options` is only allowed when `stream` is true", code="invalid_value")
    return body


def sampling_parameters(body: msgspec.Struct, constraint: StructuredOutput | None = None) -> SamplingParameters:
    """Return how a body says to choose tokens, but for its limit; raise ApiError, 400, naming the parameter."""
    logit_bias, stop_token_ids = getattr(body, "logit_bias", None) or {}, getattr(body, "stop_token_ids", None) or ()
    _check_num_entries("logit_bias", logit_bias, MAX_LOGIT_BIAS_ENTRIES)
    _check_num_entries("stop_token_ids", stop_token_ids, MAX_STOP_TOKENS)
    sampling = SamplingParameters(
        logit_bias=_logit_bias(logit_bias),
        stop_token_ids=[check_int32("stop_token_ids", token_id) for token_id in stop_token_ids],
        min_token_count=check_int32("min_tokens", getattr(body, "min_tokens", None) or 0),
        structured_output=constraint,
    )
    for name in _SAMPLING_FIELDS:
        if (value := getattr(body, name, None)) is not None:
            if isinstance(value, int):
                _check_integer(name, value, _INT64_MAX if name == "seed" else _INT32_MAX)
            setattr(sampling, name, 0 if (name, value) == ("top_k", -1) else value)  # -1: all, as vLLM has it
    return sampling


def session_name(prompt_cache_key: str | None) -> bytes:
    """Return a body's `prompt_cache_key` as the router takes it; of any length, and not to be read."""
    return blake2b(prompt_cache_key.encode(), digest_size=16).digest() if prompt_cache_key else b""


def effort_variable(known: Collection[str], effort: str | None, name: str, exchange: Exchange) -> dict[str, object]:
    """Return what a chat template that knows how hard to reason is told of it; for others it is a hint.

    `name` is the field that says so; `exchange` is told where it is left out.
    """
    if effort is None:
        return {}
    if "reasoning_effort" in known:
        return {"reasoning_effort": effort}
    exchange.ignore(name, unsupported(name, "the chat template of this model does not know it"))
    return {}


def num_choices(body: msgspec.Struct) -> int:
    """Return how many choices a body's `n` asks for; raise ApiError 400 if they are too many or none."""
    count: int | None = getattr(body, "n", None)
    if count is not None and not 1 <= count <= MAX_CHOICES:
        raise invalid("n", f"expected 1 to {MAX_CHOICES}, got {count}")
    return 1 if count is None else count


def token_limit(name: str, value: int) -> int:
    """Return a limit of output tokens for the proto; raise ApiError 400 if it is below 1."""
    if value < 1:
        raise invalid(name, f"expected 1 or more, got {value}")
    return min(value, _INT32_MAX)  # more than any context: refused as such later


def num_logprobs(name: str, value: int) -> int:
    """Return how many alternatives are to be told of a token; raise ApiError 400 if they are too many."""
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        raise invalid(name, f"expected 0 to {MAX_TOP_LOGPROBS}, got {value}")
    return value


def check_int32(name: str, value: int) -> int:
    """Return a value that the proto can hold; raise ApiError 400 if it cannot."""
    _check_integer(name, value, _INT32_MAX)
    return value


def _check_integer(name: str, value: int, largest: int) -> None:
    if not -largest - 1 <= value <= largest:
        raise invalid(name, f"{value} is out of range")


def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
    for key in biases:
        if not _TOKEN_ID.fullmatch(key):  # int() also takes "1_0", " 1", "01" and digits of other scripts
            raise invalid("logit_bias", f"keys must be token ids, got {key[:20]!r}")
    return {check_int32("logit_bias", int(key)): bias for key, bias in biases.items()}


def _check_num_entries(name: str, entries: Sized, limit: int) -> None:
    """Refuse what is far too long before it costs anything."""
    if len(entries) > limit:
        raise invalid(name, f"expected at most {limit} entries")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector out: it would scan a growing body of a million arrays again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _schema_error(text: str) -> ApiError:
    """Return the answer to a schema violation, from msgspec's words for it."""
    path = match[1] if (match := re.search(r" - at `\$\.?(.*)`$", text)) else ""
    problem = text.partition(" - at ")[0]
    if match := _UNKNOWN.match(problem):
        return unrecognized(f"{path}.{match[1]}" if path else match[1])
    if match := re.match(r"Object missing required field `(.*)`", problem):
        return missing(f"{path}.{match[1]}" if path else match[1])
    return refused(path or "body", f"Invalid type for `{path or 'body'}`: {problem}", code="invalid_type")
