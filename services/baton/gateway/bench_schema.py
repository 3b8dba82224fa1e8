"""The body of POST /bench/chat/completions, and what it asks of the nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.openai_errors import refused
from baton.gateway.openai_sampling import token_limit
from baton.gateway.openai_schema import (
    Message,
    StreamOptions,
    decode_json,
    refuse_message_extras,
    refuse_unserved_fields,
)
from baton.v1.generation_pb2 import SamplingParameters

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {"n": (1,), "logprobs": (False,)}
"""Fields that are not served, and values of them (beside null) that ask for nothing."""

_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "seed")


class BenchBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What exo's bench endpoint takes of a chat completion; bounds are those of generation.proto."""

    model: str
    messages: list[Message]
    max_tokens: int
    """Tokens that are generated, no more and no fewer: the model's end tokens cannot be chosen."""
    use_prefix_cache: bool | None = None
    """Whether prefix caches are read and filled; by default no node does, nor shares work between equal prompts."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: Any = None
    logprobs: Any = None


def decode_bench_body(data: bytes) -> BenchBody:
    """Return the body.

    Raises:
        ApiError: 400, naming the parameter that is missing, unknown, of a wrong type or not served.
    """
    body = decode_json(data, BenchBody)
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    refuse_message_extras(body.messages)
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "`stream_options` is only allowed when `stream` is true", code="invalid_value")
    return body


def bench_sampling(body: BenchBody) -> SamplingParameters:
    """Return how tokens are chosen: end tokens are masked before the last one, which the limit ends anyway.

    Raises:
        ApiError: 400, naming the parameter.
    """
    num_tokens = token_limit("max_tokens", body.max_tokens)
    sampling = SamplingParameters(min_token_count=num_tokens, max_token_count=num_tokens)
    for name in _SAMPLING_FIELDS:
        if (value := getattr(body, name)) is None:
            continue
        try:
            setattr(sampling, name, value)
        except ValueError as error:
            raise refused(name, f"Invalid value for `{name}`: {value} is out of range", code="invalid_value") from error
    return sampling
