"""What requests to prefill and decode nodes share: names, checked before anything is logged, and conversions."""

from __future__ import annotations

from baton.engine.request import SamplingParams, StructuredOutput
from baton.engine.sampling import Alternative, SampledToken
from baton.errors import InvalidFieldError, check_range
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.prefill_service_pb2 import PrefillRequest
from baton.v1 import generation_pb2

MAX_REQUEST_ID_CHARACTERS = 128
MAX_CACHE_SALT_BYTES = 128
MAX_PRIORITY = 100
"""Bound of a priority, and of its negative."""
MAX_TENANT_CHARACTERS = 32
MAX_TENANT_WEIGHT = 1000


def check_identity(request_id: str, attempt: int, cache_salt: str) -> None:
    """Check the names of a request; raise InvalidFieldError if one is empty, too long or would break a log's line."""
    if not 1 <= len(request_id) <= MAX_REQUEST_ID_CHARACTERS or not request_id.isprintable():
        raise InvalidFieldError("request_id", f"expected 1 to {MAX_REQUEST_ID_CHARACTERS} printable characters")
    check_range("attempt", attempt, 1)
    if len(cache_salt.encode()) > MAX_CACHE_SALT_BYTES:
        raise InvalidFieldError("cache_salt", f"expected at most {MAX_CACHE_SALT_BYTES} bytes")


def check_request(request: PrefillRequest | DecodeServiceGenerateRequest, placement_id: str) -> None:
    """Check names, whose turn a request is, and for whom; raise InvalidFieldError if one is out of bounds.

    `placement_id`: the router's name of the placement; empty: none.
    """
    check_identity(request.request_id, request.attempt, request.cache_salt)
    check_range("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if len(request.tenant) > MAX_TENANT_CHARACTERS:
        raise InvalidFieldError("tenant", f"expected at most {MAX_TENANT_CHARACTERS} characters")
    check_range("tenant_weight", request.tenant_weight, 0, MAX_TENANT_WEIGHT)
    if len(placement_id) > MAX_REQUEST_ID_CHARACTERS or not placement_id.isprintable():
        raise InvalidFieldError("placement_id", f"expected at most {MAX_REQUEST_ID_CHARACTERS} printable characters")


def sampling_from_proto(message: generation_pb2.SamplingParameters) -> SamplingParams:
    """Return a message's parameters, unchecked; raise InvalidFieldError if an announced constraint lacks."""
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=dict(message.logit_bias),
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        min_tokens=message.min_token_count,
        max_tokens=message.max_token_count if message.HasField("max_token_count") else None,
        num_top_logprobs=message.top_logprob_count if message.HasField("top_logprob_count") else None,
        num_prompt_logprobs=message.prompt_logprob_count if message.HasField("prompt_logprob_count") else None,
        bad_words=tuple(tuple(word.token_ids) for word in message.bad_words),
        structured_output=_structured_output_from_proto(message),
    )


def token_to_proto(token: SampledToken) -> generation_pb2.TokenLogprob:
    """Return the message of a token; without log-probabilities only its id is set."""
    return generation_pb2.TokenLogprob(
        token_id=token.token_id,
        logprob=token.logprob or 0.0,
        alternatives=[
            generation_pb2.TokenLogprob(token_id=other.token_id, logprob=other.logprob) for other in token.alternatives
        ],
        rank=token.rank,
    )


def token_from_proto(message: generation_pb2.TokenLogprob, *, has_logprob: bool) -> SampledToken:
    """Return the token of a message."""
    if not has_logprob:
        return SampledToken(message.token_id)
    alternatives = tuple(Alternative(other.token_id, other.logprob) for other in message.alternatives)
    return SampledToken(message.token_id, message.logprob, alternatives, message.rank)


def _structured_output_from_proto(message: generation_pb2.SamplingParameters) -> StructuredOutput | None:
    if not message.HasField("structured_output"):
        return None
    kind = message.structured_output.WhichOneof("constraint")
    if kind is None:
        raise InvalidFieldError("structured_output", "expected one of json_schema, regex, lark")
    return StructuredOutput(kind, getattr(message.structured_output, kind))
