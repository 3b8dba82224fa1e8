"""Answers of POST /v1/responses."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.call import Call
from baton.gateway.error_form import ErrorForm
from baton.gateway.openai_errors import ApiError
from baton.gateway.openai_usage import placement_body
from baton.gateway.requests import GenerationResult
from baton.gateway.responses_schema import (
    InputTokens,
    OutputMessage,
    OutputText,
    ReasoningTokens,
    ResponseObject,
    ResponsesUsage,
)

encode = msgspec.json.encode


class ResponsesFormat:
    """Writes one response; it has one message with one part of text. Its events are numbered from 0."""

    def __init__(self, call: Call, opening: ResponseObject) -> None:
        """Begin an answer.

        Args:
            call: Counts the events.
            opening: The response before anything was generated.
        """
        self._call = call
        self._opening = opening
        self._item_id = f"msg_{call.request_id}"
        self._texts: list[str] = []
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0, "logprobs": ()}
        fields = encode({"type": "response.output_text.delta", **place})[:-1]
        self._delta_start = b"event: response.output_text.delta\ndata: " + fields + b',"delta":'

    def start(self) -> bytes:
        """Return the events that open the response, its message and its text."""
        item = OutputMessage(self._item_id, "in_progress", [])
        return (
            self._event("response.created", response=self._opening)
            + self._event("response.in_progress", response=self._opening)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._part_event("response.content_part.added", part=OutputText(""))
        )

    def delta(self, text: str) -> bytes:
        """Return the event for new text."""
        self._texts.append(text)
        return b'%b%b,"sequence_number":%d}\n\n' % (self._delta_start, encode(text), self._next_number())

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that close the text, its message and the response."""
        text = "".join(self._texts)
        response = self._response(text, result)
        return (
            self._part_event("response.output_text.done", text=text, logprobs=())
            + self._part_event("response.content_part.done", part=OutputText(text))
            + self._event("response.output_item.done", output_index=0, item=response.output[0])
            + self._event(f"response.{response.status}", response=response)
        )

    def whole(self, text: str, result: GenerationResult) -> bytes:
        """Return the response."""
        return encode(self._response(text, result))

    def _response(self, text: str, result: GenerationResult) -> ResponseObject:
        is_cut = result.reason == "length"
        status = "incomplete" if is_cut else "completed"
        return msgspec.structs.replace(
            self._opening,
            status=status,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            output=[OutputMessage(self._item_id, status, [OutputText(text)])],
            usage=_usage(result),
            baton=placement_body(self._call.request_id, [result]),
        )

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event(kind, {**fields, "sequence_number": self._next_number()})

    def _next_number(self) -> int:
        number = self._call.num_events
        self._call.num_events += 1
        return number


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


def _error_event(error: ApiError, call: Call) -> bytes:
    fields = {"code": error.code, "message": error.message, "param": error.param}
    return _event("error", {**fields, "sequence_number": call.num_events})


RESPONSES_ERRORS = ErrorForm(lambda error, _: error.body(), _error_event)


def _usage(result: GenerationResult) -> ResponsesUsage:
    return ResponsesUsage(
        input_tokens=result.num_prompt_tokens,
        input_tokens_details=InputTokens(result.num_cached_tokens),
        output_tokens=result.num_completion_tokens,
        output_tokens_details=ReasoningTokens(),
        total_tokens=result.num_prompt_tokens + result.num_completion_tokens,
    )
