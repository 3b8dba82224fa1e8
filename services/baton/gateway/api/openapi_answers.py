"""What the OpenAPI document says of answers: a type for each endpoint, and the error objects."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.api.anthropic.errors import ErrorBody
from baton.gateway.api.anthropic.schema import CountAnswer, MessageAnswer
from baton.gateway.api.exo.bench_stats import GenerationStats, PowerUsage
from baton.gateway.api.models import ModelBody, ModelListBody
from baton.gateway.api.openai.logprobs import ChatLogprobs, CompletionLogprobs
from baton.gateway.api.responses.schema import ResponseObject
from baton.gateway.api.tokenize import DetokenizeAnswer, TokenizeAnswer
from baton.gateway.api.usage import PlacementBody, UsageBody


class ErrorObject(msgspec.Struct):
    """What is wrong, and with which parameter."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """OpenAI's error object."""

    error: ErrorObject


class AnswerMessage(msgspec.Struct):
    """What the model said."""

    role: str
    content: str | None


class ChatChoice(msgspec.Struct):
    """One answer of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatAnswer(msgspec.Struct):
    """A chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    baton: PlacementBody


class BenchAnswer(ChatAnswer, kw_only=True):
    """A chat completion and its figures."""

    generation_stats: GenerationStats
    power_usage: PowerUsage | None = None


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str


class CompletionAnswer(msgspec.Struct):
    """A completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    baton: PlacementBody


ANSWERS: dict[str, Any] = {
    "/v1/chat/completions": ChatAnswer,
    "/bench/chat/completions": BenchAnswer,
    "/v1/completions": CompletionAnswer,
    "/v1/responses": ResponseObject,
    "/v1/messages": MessageAnswer,
    "/v1/messages/count_tokens": CountAnswer,
    "/tokenize": TokenizeAnswer,
    "/detokenize": DetokenizeAnswer,
    "/v1/models": ModelListBody,
    "/v1/models/{model}": ModelBody,
    "/health": dict[str, str],
    "/ready": dict[str, str],
    "/version": dict[str, str],
}
"""Body of status 200 by path; an endpoint that is not here answers with an object of any kind."""

OPENAI_ERROR, ANTHROPIC_ERROR = ErrorAnswer, ErrorBody
"""Body of any other status."""
