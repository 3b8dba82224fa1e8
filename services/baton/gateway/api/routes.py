"""Which function answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from baton.gateway.access.request_context import RequestContext
from baton.gateway.api.anthropic.endpoint import answer_count_tokens, answer_messages
from baton.gateway.api.anthropic.errors import ANTHROPIC_ERRORS
from baton.gateway.api.anthropic.schema import NEUTRAL_VALUES as ANTHROPIC_NEUTRAL
from baton.gateway.api.anthropic.schema import ConversationBody, MessagesBody
from baton.gateway.api.errors import OPENAI_ERRORS, ErrorFormat
from baton.gateway.api.openai.chat import answer_chat
from baton.gateway.api.openai.completions import answer_completion
from baton.gateway.api.openai.schema import NEUTRAL_VALUES as OPENAI_NEUTRAL
from baton.gateway.api.openai.schema import ChatBody, CompletionBody
from baton.gateway.api.responses.answer import RESPONSES_ERRORS
from baton.gateway.api.responses.endpoint import answer_responses
from baton.gateway.api.responses.schema import NEUTRAL_VALUES as RESPONSES_NEUTRAL
from baton.gateway.api.responses.schema import ResponsesBody
from baton.gateway.api.tokenize import NEUTRAL_VALUES as TOKENIZE_NEUTRAL
from baton.gateway.api.tokenize import DetokenizeBody, TokenizeBody, answer_detokenize, answer_tokenize
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.http.response import HttpResponse
from baton.telemetry import names

Answer: TypeAlias = Callable[[TextGenerator, RequestContext, HttpResponse], Awaitable[None]]
"""Answers a request; its errors are the REST API's to write."""


class Route(NamedTuple):
    """How a path is served."""

    answer: Answer
    operation: str
    """Name of its span."""
    body: type[msgspec.Struct]
    """What it takes."""
    neutral_values: Mapping[str, tuple[object, ...]] = {}
    """Fields of the body that are not served, and values of them (beside null) that ask for nothing."""
    errors: ErrorFormat = OPENAI_ERRORS
    """How its errors are written."""


POST_ROUTES: dict[str, Route] = {
    "/v1/chat/completions": Route(answer_chat, names.SPAN_CHAT, ChatBody, OPENAI_NEUTRAL),
    "/v1/completions": Route(answer_completion, names.SPAN_TEXT_COMPLETION, CompletionBody, OPENAI_NEUTRAL),
    "/v1/responses": Route(answer_responses, names.SPAN_CHAT, ResponsesBody, RESPONSES_NEUTRAL, RESPONSES_ERRORS),
    "/v1/messages": Route(answer_messages, names.SPAN_CHAT, MessagesBody, ANTHROPIC_NEUTRAL, ANTHROPIC_ERRORS),
    "/v1/messages/count_tokens": Route(
        answer_count_tokens, names.SPAN_TOKENIZE, ConversationBody, ANTHROPIC_NEUTRAL, ANTHROPIC_ERRORS
    ),
    "/tokenize": Route(answer_tokenize, names.SPAN_TOKENIZE, TokenizeBody, TOKENIZE_NEUTRAL),
    "/detokenize": Route(answer_detokenize, names.SPAN_DETOKENIZE, DetokenizeBody),
}
"""Endpoints that take a body; they share one admission."""
