"""A batch of `baton bench pptg`: N requests at the same instant, and the rates of each and of all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from bench.client.completion import BENCH_PATH, Answer, Clock, Sampling, request_fields, stream_answer
from bench.client.http_client import HttpClient

_PREVIEW_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask, and how."""

    client: HttpClient
    path: str
    """/bench/chat/completions or /v1/chat/completions."""
    sampling: Sampling
    use_prefix_cache: bool
    timeout_seconds: float
    clock: Clock


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Rates of one request, tokens per second; METHODOLOGY.md says over which windows."""

    source: Literal["server", "client"]
    prompt_tps: float
    generation_tps: float
    prompt_tokens: int
    generation_tokens: int
    peak_memory_bytes: int
    """Of the server's accelerator; 0 where unknown."""
    prefix_cache_hit: str
    """none, partial or exact."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One request of a batch. Seconds after the start that the batch shares."""

    ttft_seconds: float
    elapsed_seconds: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_completion_tokens: int
    stats: GenerationStats
    preview: str
    power: Mapping[str, float] | None = None
    """The server's `power_usage`, joules; None where it has none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """N requests that began together; the clock's seconds."""

    start_seconds: float
    requests: tuple[BatchRequest, ...]

    @property
    def wall_seconds(self) -> float:
        """Until the last request finished."""
        return max(request.elapsed_seconds for request in self.requests)

    @property
    def exo_aggregate_tps(self) -> float:
        """`max x N`, exo's aggregate: the fastest stream's rate times the number of requests."""
        return max(request.stats.generation_tps for request in self.requests) * len(self.requests)

    @property
    def output_tps(self) -> float:
        """All output tokens / wall time, prefill included."""
        return sum(request.num_completion_tokens for request in self.requests) / self.wall_seconds

    @property
    def total_tps(self) -> float:
        """All prompt and output tokens / wall time."""
        num_tokens = sum(request.num_prompt_tokens + request.num_completion_tokens for request in self.requests)
        return num_tokens / self.wall_seconds


async def run_batch(target: Target, prompts: Sequence[str], max_tokens: int) -> Batch:
    """Send the prompts at the same instant, each on an open connection of its own; return all answers.

    Raises:
        HttpError: If a request fails; the others are cancelled.
        TimeoutError: If one takes too long.
    """
    await target.client.open_idle(len(prompts))
    barrier = asyncio.Barrier(len(prompts))
    starts: list[float] = []

    async def ask(prompt: str) -> tuple[Answer, float]:
        body = _body(target, prompt, max_tokens)
        answer = Answer()
        await barrier.wait()
        if not starts:
            starts.append(target.clock())
        async with asyncio.timeout(target.timeout_seconds):
            await stream_answer(target.client, target.path, body, target.clock, answer)
        return answer, target.clock()

    results = await _gather([ask(prompt) for prompt in prompts])
    requests = tuple(_request(answer, starts[0], finished) for answer, finished in results)
    return Batch(starts[0], requests)


async def count_by_server(target: Target, content: str) -> int:
    """Return the prompt tokens of a chat with this content, as the server counts them; generates 1 token.

    Raises:
        HttpError: If the server refuses the request, or reports no usage.
    """
    answer = Answer()
    # Counting must not fill a cache that the first measured run then finds full.
    body = _body(replace(target, use_prefix_cache=False), content, 1)
    async with asyncio.timeout(target.timeout_seconds):
        await stream_answer(target.client, target.path, body, target.clock, answer)
    return answer.num_prompt_tokens


def client_stats(answer: Answer, ttft_seconds: float) -> GenerationStats:
    """Return the rates that the client saw; prompt_tps has queueing and network in it."""
    num_uncached = answer.num_prompt_tokens - answer.num_cached_tokens
    span_seconds = answer.token_seconds[-1] - answer.token_seconds[0]
    # Servers compute the last prompt token even where all are cached, to have its logits.
    hit = "none" if not answer.num_cached_tokens else "partial" if num_uncached > 1 else "exact"
    return GenerationStats(
        source="client",
        prompt_tps=num_uncached / ttft_seconds if ttft_seconds > 0 else 0.0,
        generation_tps=(answer.num_output_tokens - 1) / span_seconds if span_seconds > 0 else 0.0,
        prompt_tokens=answer.num_prompt_tokens,
        generation_tokens=answer.num_output_tokens,
        peak_memory_bytes=0,
        prefix_cache_hit=hit,
    )


def server_stats(stats: Mapping[str, Any]) -> GenerationStats:
    """Return the rates of a server's `generation_stats`."""
    return GenerationStats(
        source="server",
        prompt_tps=stats["prompt_tps"],
        generation_tps=stats["generation_tps"],
        prompt_tokens=stats["prompt_tokens"],
        generation_tokens=stats["generation_tokens"],
        peak_memory_bytes=(stats.get("peak_memory_usage") or {}).get("inBytes", 0),
        prefix_cache_hit=stats.get("prefix_cache_hit", "none"),
    )


def _body(target: Target, content: str, max_tokens: int) -> bytes:
    fields = request_fields(target.path, (), content)
    if target.path == BENCH_PATH:
        fields["use_prefix_cache"] = target.use_prefix_cache
    return target.sampling.body(max_tokens, **fields)


async def _gather(requests: Sequence[Any]) -> list[tuple[Answer, float]]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except* Exception as failures:
        # The first failure is the cause; the others were cancelled because of it.
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _request(answer: Answer, start_seconds: float, finished_seconds: float) -> BatchRequest:
    if not answer.token_seconds:
        raise ValueError("an answer without output has no rates")
    ttft_seconds = answer.token_seconds[0] - start_seconds
    return BatchRequest(
        ttft_seconds=ttft_seconds,
        elapsed_seconds=finished_seconds - start_seconds,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_cached_tokens=answer.num_cached_tokens,
        num_completion_tokens=answer.num_output_tokens,
        stats=server_stats(answer.stats) if answer.stats else client_stats(answer, ttft_seconds),
        power=answer.power,
        preview="".join(answer.text)[:_PREVIEW_CHARACTERS],
    )
