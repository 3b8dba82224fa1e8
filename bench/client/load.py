"""Sends sessions at their times and gathers a sample of every request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from bench.client.completion import Answer, Clock, Sampling, clock_from_now, request_fields, stream_answer
from bench.client.http_client import HttpClient, HttpError
from bench.client.metrics import RequestSample
from bench.workloads.dataset import Session, Turn

_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How the requests of a run are sent."""

    path: str
    """Endpoint: /v1/completions or /v1/chat/completions."""
    sampling: Sampling
    timeout_seconds: float = 600.0
    """Longest time of one request; it counts as failed after that."""
    max_in_flight: int | None = None
    """Sessions that run at a time; later ones wait in the client, which shows as lateness. None has no limit."""
    think_seconds: float = 0.0
    """Pause between an answer and the next turn of its session."""


async def run_load(
    client: HttpClient, sessions: Sequence[Session], arrivals: Sequence[float], settings: LoadSettings
) -> list[RequestSample]:
    """Run every session from its arrival on; return the samples of all requests, by session and turn.

    `arrivals` are seconds after the beginning of the run.
    """
    clock = clock_from_now()
    gate = asyncio.Semaphore(settings.max_in_flight) if settings.max_in_flight else None

    async def run(index: int, session: Session, arrival_seconds: float) -> list[RequestSample]:
        await asyncio.sleep(arrival_seconds - clock())
        async with gate or nullcontext():
            return await _run_session(client, index, session, arrival_seconds, settings, clock)

    async with asyncio.TaskGroup() as group:
        paired = enumerate(zip(sessions, arrivals, strict=True))
        tasks = [group.create_task(run(index, session, arrival)) for index, (session, arrival) in paired]
    return [sample for task in tasks for sample in task.result()]


async def _run_session(
    client: HttpClient, index: int, session: Session, scheduled_seconds: float, settings: LoadSettings, clock: Clock
) -> list[RequestSample]:
    samples: list[RequestSample] = []
    history: list[tuple[str, str]] = []
    for turn_index, turn in enumerate(session.turns):
        answer = Answer()
        fields = request_fields(settings.path, history, turn.prompt)
        error = await _ask(client, turn, fields, settings, clock, answer)
        sample = RequestSample(
            session=index,
            turn=turn_index,
            scheduled_seconds=round(scheduled_seconds, _DECIMALS),
            sent_seconds=round(answer.sent_seconds, _DECIMALS),
            finished_seconds=round(clock(), _DECIMALS),
            token_seconds=tuple(round(seconds, _DECIMALS) for seconds in answer.token_seconds),
            num_prompt_tokens=answer.num_prompt_tokens,
            num_cached_tokens=answer.num_cached_tokens,
            num_completion_tokens=answer.num_output_tokens,
            max_tokens=turn.max_tokens,
            prefill_node=(answer.placement or {}).get("prefill_node", ""),
            decode_node=(answer.placement or {}).get("decode_node", ""),
            error=error,
        )
        samples.append(sample)
        if error or turn_index + 1 == len(session.turns):
            break
        history.append((str(turn.prompt), "".join(answer.text)))
        scheduled_seconds = clock() + settings.think_seconds
        await asyncio.sleep(settings.think_seconds)
    return samples


async def _ask(
    client: HttpClient, turn: Turn, fields: dict[str, object], settings: LoadSettings, clock: Clock, answer: Answer
) -> str | None:
    body = settings.sampling.body(turn.max_tokens, **fields)
    answer.sent_seconds = clock()
    try:
        async with asyncio.timeout(settings.timeout_seconds):
            await stream_answer(client, settings.path, body, clock, answer)
    except TimeoutError:
        return f"no answer within {settings.timeout_seconds} seconds"
    except (HttpError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None if answer.token_seconds and answer.num_output_tokens else "an answer without output"
