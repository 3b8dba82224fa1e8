"""The body of POST /bench/chat/completions, and what it asks of the nodes.

Answers of POST /bench/chat/completions: chat completions with the request's figures, as exo writes them.

POST /bench/chat/completions: a chat completion for measurements, after exo's bench endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from baton.gateway.access.request_context import RequestContext, generation_name
from baton.gateway.api.answer import DONE, answer_single, encode
from baton.gateway.api.errors import refused
from baton.gateway.api.exo.bench_stats import GenerationStats, PowerUsage, PromptRates, generation_stats, power_usage
from baton.gateway.api.exo.instances import Instances
from baton.gateway.api.openai.messages import chat_messages
from baton.gateway.api.openai.schema import (
    Message,
    StreamOptions,
    decode_json,
    refuse_message_extras,
    refuse_unserved_fields,
)
from baton.gateway.api.routes import Route
from baton.gateway.api.sampling import token_limit
from baton.gateway.api.usage import PlacementBody, UsageBody, placement_body, usage_body
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import ChatPrompt, Delta, GenerationRequest, GenerationResult
from baton.gateway.http.response import HttpResponse
from baton.telemetry import names
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


class Figures(NamedTuple):
    """What an answer tells beside its text."""

    stats: GenerationStats
    """Always."""
    power: PowerUsage | None
    """None where no sensor covers it."""


class BenchFormat:
    """Writes one answer; the text is that of the tokens, nothing is parsed out of it.

    Args:
        request_id: Name of the request.
        model: Served name.
        created_seconds: Time of the answer, since 1970.
        has_usage: Whether a stream reports the usage.
        figures: Returns the figures of a result.
    """

    def __init__(
        self,
        request_id: str,
        model: str,
        created_seconds: int,
        *,
        has_usage: bool,
        figures: Callable[[GenerationResult], Figures],
    ) -> None:
        self._request_id = request_id
        self._common = {"id": f"chatcmpl-{request_id}", "created": created_seconds, "model": model}
        self._has_usage = has_usage
        self._figures = figures
        self._texts: list[str] = []

    def start(self) -> bytes:
        """Return the event with the role."""
        return self._choice({"role": "assistant", "content": ""}, None)

    def delta(self, delta: Delta) -> bytes:
        """Return the event for new text."""
        self._texts.append(delta.text)
        return self._choice({"content": delta.text}, None) if delta.text else b""

    def finish(self, result: GenerationResult) -> bytes:
        """Return the finish reason, the usage if it was asked for, the figures as comments, and the end."""
        figures = self._figures(result)
        events = [self._choice({}, result.reason)]
        if self._has_usage:
            usage, placement = self._usage(result)
            events.append(self._event({"choices": [], "usage": usage, "baton": placement}))
        events.append(b": generation_stats " + encode(figures.stats) + b"\n\n")
        if figures.power is not None:
            events.append(b": power_usage " + encode(figures.power) + b"\n\n")
        return b"".join(events) + DONE

    def whole(self, result: GenerationResult) -> bytes:
        """Return the body of an answer that is not streamed."""
        figures = self._figures(result)
        usage, placement = self._usage(result)
        message = {"role": "assistant", "content": "".join(self._texts)}
        body = {
            **self._common,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": result.reason}],
            "usage": usage,
            "generation_stats": figures.stats,
            "baton": placement,
        }
        return encode(body if figures.power is None else {**body, "power_usage": figures.power})

    def _usage(self, result: GenerationResult) -> tuple[UsageBody, PlacementBody]:
        return usage_body([[result]]), placement_body(self._request_id, [result])

    def _choice(self, delta: dict[str, str], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._event({"choices": [choice]})

    def _event(self, fields: dict[str, object]) -> bytes:
        return b"data: " + encode({**self._common, "object": "chat.completion.chunk", **fields}) + b"\n\n"


BENCH_PATH = "/bench/chat/completions"


class BenchEndpoint:
    """Answers benchmark requests.

    Args:
        instances: Placements that they are held to. Other requests go where the router sends them.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._rates = PromptRates()

    @property
    def route(self) -> Route:
        """Return how its path is served."""
        return Route(self.answer_bench, names.SPAN_CHAT, BenchBody, NEUTRAL_VALUES)

    async def answer_bench(self, generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
        """Answer a chat completion for measurements: cold caches, exactly `max_tokens` tokens, and its figures.

        Raises:
            ApiError: Naming the parameter that cannot be served.
            BatonError: If it cannot be generated.
        """
        body = decode_bench_body(call.body)
        prompt = await generator.prepare(self._request(body, call))

        def figures(result: GenerationResult) -> Figures:
            return Figures(generation_stats(prompt, result, self._rates), power_usage(result.summary))

        has_usage = bool(body.stream_options and body.stream_options.include_usage)
        form = BenchFormat(call.request_id, body.model, int(time.time()), has_usage=has_usage, figures=figures)
        await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))

    def _request(self, body: BenchBody, call: RequestContext) -> GenerationRequest:
        return GenerationRequest(
            request_id=generation_name(call.request_id),
            model=body.model,
            prompt=ChatPrompt(chat_messages(body.messages)),
            sampling=bench_sampling(body),
            bypass_prefix_cache=not body.use_prefix_cache,
            pins=self._instances.pins(body.model),
        )
