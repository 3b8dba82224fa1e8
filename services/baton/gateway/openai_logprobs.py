"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from baton.v1.generation_pb2 import TokenLogprob

TokenBytes: TypeAlias = Callable[[int], bytes]
"""Gives the bytes that a token stands for."""


class TopLogprobBody(msgspec.Struct):
    """An alternative."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(msgspec.Struct):
    """A token of a chat completion."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobBody]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat completion's choice."""

    content: list[TokenLogprobBody]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`logprobs` of a text completion's choice."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    """Null for the first token of a prompt: nothing stands before it."""
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


def chat_logprobs(logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes) -> ChatLogprobs:
    """Return log-probabilities as chat completions have them."""
    content = []
    for entry in logprobs:
        data = token_bytes(entry.token_id)
        alternatives = [_top(alternative, token_bytes) for alternative in entry.alternatives]
        content.append(TokenLogprobBody(_text(data), entry.logprob, list(data), alternatives))
    return ChatLogprobs(content)


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes, text_offset: int
) -> CompletionLogprobs:
    """Return log-probabilities as text completions have them.

    Args:
        logprobs: One per token.
        token_bytes: Bytes of a token.
        text_offset: Characters before the first token.
    """
    body = CompletionLogprobs()
    for entry in logprobs:
        token = _text(token_bytes(entry.token_id))
        body.tokens.append(token)
        body.token_logprobs.append(entry.logprob)
        alternatives = {_text(token_bytes(other.token_id)): other.logprob for other in entry.alternatives}
        body.top_logprobs.append(alternatives)
        body.text_offset.append(text_offset)
        text_offset += len(token)
    return body


def _top(entry: TokenLogprob, token_bytes: TokenBytes) -> TopLogprobBody:
    data = token_bytes(entry.token_id)
    return TopLogprobBody(_text(data), entry.logprob, list(data))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
