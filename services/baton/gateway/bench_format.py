"""Answers of POST /bench/chat/completions: chat completions with the request's figures, as exo writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baton.gateway.answer_format import DONE, encode
from baton.gateway.bench_stats import GenerationStats, PowerUsage
from baton.gateway.openai_usage import PlacementBody, UsageBody, placement_body, usage_body
from baton.gateway.requests import Delta, GenerationResult


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
