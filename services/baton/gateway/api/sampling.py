"""From the REST API's parameters to the proto's."""

from __future__ import annotations

import re
from collections.abc import Sized

from baton.gateway.api.errors import refused
from baton.gateway.api.openai.schema import ChatBody, CommonBody, CompletionBody
from baton.gateway.generation.limits import MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_TOKEN_ID = re.compile(r"-?(0|[1-9][0-9]{0,9})")

_MAY_STAY_UNSET = ("temperature", "top_p", "repetition_penalty", "seed")
_DEFAULT_IS_ZERO = ("top_k", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos")


def stop_strings(body: CommonBody) -> tuple[str, ...]:
    """Return the stop strings of a body."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def chat_sampling(body: ChatBody, constraint: StructuredOutput | None = None) -> SamplingParameters:
    """Return how a chat completion's tokens are chosen, and the form that they must have.

    Raises:
        ApiError: 400, naming the parameter.
    """
    sampling = _common_sampling(body, constraint)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise refused("max_tokens", "`max_tokens` and `max_completion_tokens` differ", code="invalid_value")
        sampling.max_token_count = token_limit("max_completion_tokens", body.max_completion_tokens)
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs", "`top_logprobs` needs `logprobs` to be true", code="invalid_value")
    if body.logprobs:
        sampling.top_logprob_count = check_int32("top_logprobs", body.top_logprobs or 0)
    return sampling


def completion_sampling(body: CompletionBody, constraint: StructuredOutput | None = None) -> SamplingParameters:
    """Return how a text completion's tokens are chosen, and the form that they must have.

    Raises:
        ApiError: 400, naming the parameter.
    """
    sampling = _common_sampling(body, constraint)
    if body.logprobs is not None:
        _check_num_logprobs("logprobs", body.logprobs)
        sampling.top_logprob_count = body.logprobs
        if body.echo:
            _refuse_in_stream(body, "logprobs", "`logprobs` of a prompt that is echoed")
            sampling.prompt_logprob_count = max(body.logprobs, sampling.prompt_logprob_count)
    return sampling


def is_output_dropped(body: CommonBody) -> bool:
    """Return whether a body asks for its prompt alone: nothing is to be generated after what is echoed.

    Raises:
        ApiError: 400, if it is to be streamed.
    """
    is_dropped = isinstance(body, CompletionBody) and bool(body.echo) and body.max_tokens == 0
    if is_dropped:
        _refuse_in_stream(body, "max_tokens", "a limit of 0 tokens")
    return is_dropped


def _refuse_in_stream(body: CommonBody, name: str, what: str) -> None:
    if body.stream:
        text = f"Unsupported parameter: `{name}`: {what} is not served in a stream"
        raise refused(name, text, code="unsupported_parameter")


def _check_num_logprobs(name: str, value: int) -> None:
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        text = f"Invalid value for `{name}`: expected 0 to {MAX_TOP_LOGPROBS}, got {value}"
        raise refused(name, text, code="invalid_value")


def _common_sampling(body: CommonBody, constraint: StructuredOutput | None) -> SamplingParameters:
    _check_num_entries("logit_bias", body.logit_bias or (), MAX_LOGIT_BIAS_ENTRIES)
    _check_num_entries("stop_token_ids", body.stop_token_ids or (), MAX_STOP_TOKENS)
    for name in ("seed", "top_k"):
        _check_integer(name, getattr(body, name), _INT64_MAX if name == "seed" else _INT32_MAX)
    sampling = SamplingParameters(
        logit_bias=_logit_bias(body.logit_bias or {}),
        stop_token_ids=[check_int32("stop_token_ids", token_id) for token_id in body.stop_token_ids or ()],
        min_token_count=check_int32("min_tokens", body.min_tokens or 0),
        structured_output=constraint,
    )
    for name in (*_MAY_STAY_UNSET, *_DEFAULT_IS_ZERO):
        if (value := getattr(body, name)) is not None:
            setattr(sampling, name, value)
    if body.prompt_logprobs is not None:
        _check_num_logprobs("prompt_logprobs", body.prompt_logprobs)
        _refuse_in_stream(body, "prompt_logprobs", "what is told of a prompt")
        sampling.prompt_logprob_count = body.prompt_logprobs
    if body.max_tokens is not None:
        # The last position is computed for the prompt's sake: its token costs nothing, and is dropped.
        sampling.max_token_count = 1 if is_output_dropped(body) else token_limit("max_tokens", body.max_tokens)
    return sampling


def _logit_bias(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not _TOKEN_ID.fullmatch(key):  # int() also takes "1_0", " 1", "01" and digits of other scripts
            text = f"Invalid value for `logit_bias`: keys must be token ids, got {key[:20]!r}"
            raise refused("logit_bias", text, code="invalid_value")
    return {check_int32("logit_bias", int(key)): bias for key, bias in biases.items()}


def _check_num_entries(name: str, entries: Sized, limit: int) -> None:
    """Refuse what is far too long before it costs anything."""
    if len(entries) > limit:
        raise refused(name, f"Invalid value for `{name}`: expected at most {limit} entries", code="invalid_value")


def token_limit(name: str, value: int) -> int:
    """Return a limit of output tokens for the proto.

    Raises:
        ApiError: 400, if it is below 1.
    """
    if value < 1:
        raise refused(name, f"Invalid value for `{name}`: expected 1 or more, got {value}", code="invalid_value")
    return min(value, _INT32_MAX)  # more than any context: refused as such later


def check_int32(name: str, value: int) -> int:
    """Return a value that the proto can hold.

    Raises:
        ApiError: 400, if it cannot.
    """
    _check_integer(name, value, _INT32_MAX)
    return value


def _check_integer(name: str, value: int | None, largest: int) -> None:
    if value is not None and not -largest - 1 <= value <= largest:
        raise refused(name, f"Invalid value for `{name}`: {value} is out of range", code="invalid_value")
