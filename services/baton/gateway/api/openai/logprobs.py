"""Log-probabilities in OpenAI's two forms; of prompts, those of echoes, and vLLM's `prompt_logprobs`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from baton.gateway.generation.requests import PromptLogprobs
from baton.v1.generation_pb2 import TokenLogprob

TokenBytes: TypeAlias = Callable[[int], bytes]
"""Gives the bytes that a token stands for."""


class TopLogprobBody(msgspec.Struct):
    """An alternative."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobBody(TopLogprobBody):
    """A token of a chat completion."""

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
    """Return log-probabilities as text completions have them. `text_offset`: characters before the first token."""
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


class PromptTokenBody(msgspec.Struct):
    """A token that might stand at a position of the prompt."""

    logprob: float
    rank: int
    """1 for the most probable."""
    decoded_token: str


PromptPosition = dict[str, PromptTokenBody] | None
"""By token id: the token that stands there, then the most probable ones; null for the first position."""


def echoed_logprobs(
    prompt: PromptLogprobs, num_alternatives: int, output: Sequence[TokenLogprob], token_bytes: TokenBytes
) -> CompletionLogprobs:
    """Return the log-probabilities of a prompt and the output after it, null for the first token."""
    first = token_bytes(prompt.first_token_id).decode(errors="replace")
    judged = [*(_cut(entry, num_alternatives) for entry in prompt.logprobs), *output]
    body = completion_logprobs(judged, token_bytes, len(first))
    body.tokens.insert(0, first)
    body.token_logprobs.insert(0, None)
    body.top_logprobs.insert(0, None)
    body.text_offset.insert(0, 0)
    return body


def prompt_positions(prompt: PromptLogprobs, num_alternatives: int, token_bytes: TokenBytes) -> list[PromptPosition]:
    """Return vLLM's `prompt_logprobs`, one entry per token of the prompt."""
    return [None, *(_position(entry, num_alternatives, token_bytes) for entry in prompt.logprobs)]


def _position(entry: TokenLogprob, num_alternatives: int, token_bytes: TokenBytes) -> PromptPosition:
    position = {str(entry.token_id): _token(entry, entry.rank, token_bytes)}
    for index, alternative in enumerate(entry.alternatives[:num_alternatives]):
        position.setdefault(str(alternative.token_id), _token(alternative, index + 1, token_bytes))
    return position


def _token(entry: TokenLogprob, rank: int, token_bytes: TokenBytes) -> PromptTokenBody:
    return PromptTokenBody(entry.logprob, rank, token_bytes(entry.token_id).decode(errors="replace"))


def _cut(entry: TokenLogprob, num_alternatives: int) -> TokenLogprob:
    if len(entry.alternatives) <= num_alternatives:
        return entry
    return TokenLogprob(
        token_id=entry.token_id, logprob=entry.logprob, alternatives=entry.alternatives[:num_alternatives]
    )
