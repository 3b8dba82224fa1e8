"""What chat and text completions have in common in their answers, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from baton.gateway.openai_usage import PlacementBody, UsageBody
from baton.gateway.requests import Delta, GenerationResult
from baton.v1.generation_pb2 import TokenLogprob

DONE = b"data: [DONE]\n\n"
"""Ends a stream that was not broken off."""

encode = msgspec.json.encode


class Choice(NamedTuple):
    """A finished choice of an answer that is not streamed."""

    text: str
    logprobs: Sequence[TokenLogprob]
    result: GenerationResult


class AnswerFormat(Protocol):
    """Writes one answer: server-sent events for a stream, or a whole body."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice, its opening before the first; may be empty."""

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the events that end a choice."""

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""

    def whole(self, choices: Sequence[Choice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""
