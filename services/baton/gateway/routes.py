"""Which function answers which path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec

from baton.gateway.anthropic_errors import ANTHROPIC_ERRORS
from baton.gateway.anthropic_messages import answer_count_tokens, answer_messages
from baton.gateway.anthropic_schema import NEUTRAL_VALUES as ANTHROPIC_NEUTRAL
from baton.gateway.anthropic_schema import ConversationBody, MessagesBody
from baton.gateway.call import Call
from baton.gateway.chat import answer_chat
from baton.gateway.completions import answer_completion
from baton.gateway.error_form import OPENAI_ERRORS, ErrorForm
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_schema import NEUTRAL_VALUES as OPENAI_NEUTRAL
from baton.gateway.openai_schema import ChatBody, CompletionBody
from baton.gateway.responses import answer_responses
from baton.gateway.responses_format import RESPONSES_ERRORS
from baton.gateway.responses_schema import NEUTRAL_VALUES as RESPONSES_NEUTRAL
from baton.gateway.responses_schema import ResponsesBody
from baton.gateway.tokenize import answer_detokenize, answer_tokenize
from baton.gateway.tokenize_schema import NEUTRAL_VALUES as TOKENIZE_NEUTRAL
from baton.gateway.tokenize_schema import DetokenizeBody, TokenizeBody
from baton.telemetry import names

Answer: TypeAlias = Callable[[Generator, Call, HttpResponse], Awaitable[None]]
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
    errors: ErrorForm = OPENAI_ERRORS
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
