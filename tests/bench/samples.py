"""Request samples with known numbers."""

from __future__ import annotations

from bench.client.metrics import RequestSample


def sample(
    *token_seconds: float,
    sent: float = 0.0,
    scheduled: float | None = None,
    finished: float | None = None,
    prompt_tokens: int = 10,
    cached_tokens: int = 0,
    completion_tokens: int | None = None,
    max_tokens: int | None = None,
    error: str | None = None,
) -> RequestSample:
    """Return a sample whose tokens came at the given times; one token per event unless said otherwise."""
    count = len(token_seconds) if completion_tokens is None else completion_tokens
    return RequestSample(
        session=0,
        turn=0,
        scheduled_seconds=sent if scheduled is None else scheduled,
        sent_seconds=sent,
        finished_seconds=finished if finished is not None else (token_seconds[-1] if token_seconds else sent),
        token_seconds=token_seconds,
        num_prompt_tokens=prompt_tokens,
        num_cached_tokens=cached_tokens,
        num_completion_tokens=count,
        max_tokens=count if max_tokens is None else max_tokens,
        error=error,
    )
