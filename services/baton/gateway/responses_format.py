"""Answers of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton.gateway.call import Call
from baton.gateway.error_form import ErrorForm
from baton.gateway.openai_errors import ApiError
from baton.gateway.openai_logprobs import TokenBytes, TokenLogprobBody, chat_logprobs
from baton.gateway.openai_usage import placement_body
from baton.gateway.requests import Delta, GenerationResult
from baton.gateway.responses_items import ItemWriter, encode, event
from baton.gateway.responses_schema import InputTokens, ReasoningTokens, ResponseObject, ResponsesUsage
from baton.text.answer_parser import AnswerParser
from baton.text.output_parts import Content, OutputPart, joined


class ResponsesFormat:
    """Writes one response: reasoning, text and calls as items of their own. Its events are numbered from 0."""

    def __init__(
        self,
        call: Call,
        opening: ResponseObject,
        parser: AnswerParser | None,
        tool_format: str,
        *,
        token_bytes: TokenBytes | None,
    ) -> None:
        """Begin an answer.

        Args:
            call: Counts the events.
            opening: The response before anything was generated.
            parser: Reads the answer; None: all of it is text.
            tool_format: Format of the model's calls.
            token_bytes: Gives the bytes of a token for log-probabilities; None: they were not asked for.
        """
        self._call = call
        self._opening = opening
        self._parser = parser
        self._token_bytes = token_bytes
        self._items = ItemWriter(call, tool_format)
        self._pending: list[TokenLogprobBody] = []
        """Log-probabilities of tokens whose text is held back."""

    def start(self) -> bytes:
        """Return the events that open the response, and its message where it can be nothing else."""
        opening = event(self._call, "response.created", response=self._opening)
        opening += event(self._call, "response.in_progress", response=self._opening)
        return opening if self._parser is not None else opening + self._items.open_message()

    def delta(self, delta: Delta) -> bytes:
        """Return the events for new output."""
        if self._token_bytes is not None:
            self._pending += chat_logprobs(delta.logprobs, self._token_bytes).content
        if not delta.text:
            return b""
        return self._write([Content(delta.text)] if self._parser is None else self._parser.push(delta.text))

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that close what is open, and the response."""
        closing = self._close(result)
        response = self._response(result)
        return closing + event(self._call, f"response.{response.status}", response=response)

    def whole(self, result: GenerationResult) -> bytes:
        """Return the response."""
        self._close(result)
        return encode(self._response(result))

    def _write(self, parts: Sequence[OutputPart]) -> bytes:
        """Return the events of parts; log-probabilities are those of tokens that brought content."""
        events = []
        for part in joined(parts):
            logprobs: Sequence[TokenLogprobBody] = ()
            if isinstance(part, Content):
                logprobs, self._pending = self._pending, []
            events.append(self._items.write(part, logprobs))
        if events:
            self._pending = []
        return b"".join(events)

    def _close(self, result: GenerationResult) -> bytes:
        rest = self._write(self._parser.finish()) if self._parser is not None else b""
        opening = self._items.open_message() if not self._items.items else b""
        return rest + opening + self._items.close(_status(result))

    def _response(self, result: GenerationResult) -> ResponseObject:
        return msgspec.structs.replace(
            self._opening,
            status=_status(result),
            incomplete_details={"reason": "max_output_tokens"} if result.reason == "length" else None,
            output=self._items.items,
            usage=_usage(result),
            baton=placement_body(self._call.request_id, [result]),
        )


def _status(result: GenerationResult) -> str:
    return "incomplete" if result.reason == "length" else "completed"


def _error_event(error: ApiError, call: Call) -> bytes:
    return event(call, "error", code=error.code, message=error.message, param=error.param)


RESPONSES_ERRORS = ErrorForm(lambda error, _: error.body(), _error_event)


def _usage(result: GenerationResult) -> ResponsesUsage:
    return ResponsesUsage(
        input_tokens=result.num_prompt_tokens,
        input_tokens_details=InputTokens(result.num_cached_tokens),
        output_tokens=result.num_completion_tokens,
        output_tokens_details=ReasoningTokens(result.num_reasoning_tokens or 0),
        total_tokens=result.num_prompt_tokens + result.num_completion_tokens,
    )
