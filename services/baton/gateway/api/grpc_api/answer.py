"""From the output of generations to the messages of the public gRPC API."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.openai.logprobs import TokenBytes
from baton.gateway.generation.generator import AnswerEnd, AnswerReader
from baton.gateway.generation.requests import Delta, GenerationResult
from baton.text.output_parts import CallArguments, CallStart, Content, OutputPart, Reasoning
from baton.v1 import generation_pb2
from baton.v1.generation_service_pb2 import GenerateResponse, GenerationEnd, ToolCallDelta

Write: TypeAlias = Callable[[GenerateResponse], Awaitable[None]]

MAX_ENTRIES = 256
"""Of a message: tokens with 20 alternatives each, and the texts of all, are then below the 4 MiB that clients take."""
_REASONS: dict[AnswerEnd, generation_pb2.FinishReason] = {
    "stop": generation_pb2.FINISH_REASON_STOP,
    "length": generation_pb2.FINISH_REASON_LENGTH,
    "tool_calls": generation_pb2.FINISH_REASON_TOOL_CALLS,
}


class GrpcWriter:
    """Takes the output of choices without blocking, and writes it while `run` runs.

    What waits is part of the generations' own output, which their token limit bounds. A client that takes nothing is
    noticed by the connection's pings, or by the request's time limit.
    """

    def __init__(self, write: Write, token_bytes: TokenBytes, make_reader: Callable[[], AnswerReader | None]) -> None:
        """Begin an answer. `make_reader` makes what reads one choice; None from it: the text is all."""
        self._write, self._token_bytes = write, token_bytes
        self._make_reader = make_reader
        self._readers: dict[int, AnswerReader | None] = {}
        self._waiting: deque[GenerateResponse] = deque()
        self._has_news = asyncio.Event()
        self._is_closed = False

    def take(self, choice: int, delta: Delta) -> None:
        """Take the next output of a choice."""
        reader = self._reader(choice)
        message = self._message(choice)
        message.token_ids.extend(delta.token_ids)
        if delta.logprobs:
            message.logprobs.extend(delta.logprobs)
            _tell(message.logprobs[-len(delta.logprobs) :], self._token_bytes)
        if reader is None:
            message.text += delta.text
        else:
            _add(message, reader.push(delta.text), reader)
        self._has_news.set()

    async def finish(self, choice: int, result: GenerationResult, asked: RequestContext) -> None:
        """Take the end of a choice, and with that of the first what is told of the prompt."""
        reason: AnswerEnd = result.reason
        if (reader := self._reader(choice)) is not None:
            if parts := reader.finish():
                _add(self._message(choice), parts, reader)
            reason = reader.end(result.reason)
        if result.prompt is not None and choice == 0:
            entries = result.prompt.logprobs
            for begin in range(0, len(entries), MAX_ENTRIES):  # up to 20 alternatives a token: seconds
                piece = entries[begin : begin + MAX_ENTRIES]
                self._waiting.append(await asyncio.to_thread(_judgement, piece, self._token_bytes))
        self._waiting.append(GenerateResponse(choice_index=choice, finished=_end(result, reason, asked)))
        self._has_news.set()

    def close(self) -> None:
        """Let `run` return once all is written."""
        self._is_closed = True
        self._has_news.set()

    async def run(self) -> None:
        """Write what comes until `close`."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._waiting:
                await self._write(self._waiting.popleft())
            if self._is_closed:
                return

    def _reader(self, choice: int) -> AnswerReader | None:
        if choice not in self._readers:
            self._readers[choice] = self._make_reader()
        return self._readers[choice]

    def _message(self, choice: int) -> GenerateResponse:
        """Return the message that waits for more of a choice."""
        last = self._waiting[-1] if self._waiting else None
        if last is None or last.choice_index != choice or len(last.token_ids) >= MAX_ENTRIES:
            last = GenerateResponse(choice_index=choice)
            self._waiting.append(last)
        return last


def _add(message: GenerateResponse, parts: Iterable[OutputPart], reader: AnswerReader) -> None:
    """Add parts of an answer to a message."""
    calls = message.tool_calls
    for part in parts:
        match part:
            case Content(text):
                message.text += text
            case Reasoning(text):
                message.reasoning += text
            case CallStart(index, name):
                calls.append(ToolCallDelta(index=index, id=reader.new_call_id(), name=name))
            case CallArguments(index, text):
                if not calls or calls[-1].index != index:
                    calls.add(index=index)
                calls[-1].arguments += text


def _tell(logprobs: Iterable[generation_pb2.TokenLogprob], token_bytes: TokenBytes) -> None:
    """Write beside tokens what they stand for."""
    for entry in logprobs:
        for each in (entry, *entry.alternatives):
            each.token_bytes = token_bytes(each.token_id)
            each.text = each.token_bytes.decode(errors="replace")


def _judgement(logprobs: Sequence[generation_pb2.TokenLogprob], token_bytes: TokenBytes) -> GenerateResponse:
    message = GenerateResponse(prompt_logprobs=logprobs)
    _tell(message.prompt_logprobs, token_bytes)
    return message


def _end(result: GenerationResult, reason: AnswerEnd, asked: RequestContext) -> GenerationEnd:
    return GenerationEnd(
        reason=_REASONS[reason],
        usage=generation_pb2.Usage(
            prompt_token_count=result.num_prompt_tokens,
            cached_token_count=result.num_cached_tokens,
            completion_token_count=result.num_completion_tokens,
            seed=result.seed,
            reasoning_token_count=result.num_reasoning_tokens,
        ),
        placement=result.summary,
        degraded_max_token_count=result.degraded_max_tokens,
        stop=result.stop or "",
        request_id=asked.request_id,
        attempt_count=result.num_attempts,
        ignored_fields=asked.ignored,
    )
