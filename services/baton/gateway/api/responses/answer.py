"""The items of a response, and the events of a stream that build them up. Answers of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.answer import FinishedChoice, encode
from baton.gateway.api.errors import ErrorFormat
from baton.gateway.api.openai.errors import error_body
from baton.gateway.api.openai.logprobs import TokenBytes, TokenLogprobBody, chat_logprobs
from baton.gateway.api.responses import schema
from baton.gateway.api.responses.input import sealed
from baton.gateway.api.usage import placement_body
from baton.gateway.generation.requests import Delta, GenerationResult
from baton.gateway.generation.tools import new_tool_call_id
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, joined

_TEXT_EVENTS = {"message": "output_text", "reasoning": "reasoning_text"}


def event(context: RequestContext, kind: str, **fields: Any) -> bytes:
    """Return an event with the next number."""
    number = context.num_events
    context.num_events += 1
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields, "sequence_number": number}))


class ItemWriter:
    """Writes items one after the other; at most one is open. Whole answers drop the events."""

    def __init__(self, context: RequestContext, tool_format: str, *, is_sealing: bool) -> None:
        self.items: list[schema.OutputItem] = []
        """Complete ones, and the open one last."""
        self._context, self._tool_format = context, tool_format
        self._is_sealing = is_sealing
        self._is_open = False
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobBody] = []
        self._delta_start = b""

    def write(self, part: OutputPart, logprobs: Sequence[TokenLogprobBody] = ()) -> bytes:
        """Return the events of a part of the answer; log-probabilities are those of content."""
        match part:
            case CallStart(_, name):
                return self.close("completed") + self._open(self._new_call(name))
            case CallArguments(_, text):
                self._texts.append(text)
                return self._delta("response.function_call_arguments.delta", text)
            case CallEnd():
                return self.close("completed")
            case _:
                opening = self.open_text("message" if isinstance(part, Content) else "reasoning")
                self._texts.append(part.text)
                self._logprobs += logprobs
                return opening + self._text_delta(part.text, logprobs)

    def close(self, status: str) -> bytes:
        """Return the events that close the open item, if there is one."""
        if not self._is_open:
            return b""
        self._is_open = False
        item, text = self.items[-1], "".join(self._texts)
        item.status = status
        if isinstance(item, schema.FunctionCall):
            item.arguments = text
            kind = "response.function_call_arguments.done"
            done = self._event(kind, item_id=item.id, name=item.name, arguments=text)
        else:
            done = self._close_text(item, text)
        return done + self._event("response.output_item.done", item=item)

    def _close_text(self, item: schema.OutputMessage | schema.ReasoningItem, text: str) -> bytes:
        fields: dict[str, Any] = {"item_id": item.id, "content_index": 0}
        if isinstance(item, schema.OutputMessage):
            part = schema.OutputText(text, logprobs=self._logprobs)
            item.content = [part]
            done = self._event("response.output_text.done", **fields, text=text, logprobs=self._logprobs)
            return done + self._event("response.content_part.done", **fields, part=part)
        item.content = [schema.ReasoningText(text)]
        if self._is_sealing:
            item.encrypted_content = sealed(text)
        return self._event("response.reasoning_text.done", **fields, text=text)

    def open_text(self, kind: str) -> bytes:
        """Return the events that open a message, or reasoning, unless it is open."""
        if self._is_open and self.items[-1].type == kind:
            return b""
        closing = self.close("completed")
        number = len(self.items)
        suffix = f"_{number}" if number else ""
        if kind == "reasoning":
            return closing + self._open(
                schema.ReasoningItem(f"rs_{self._context.request_id}{suffix}", "in_progress", [])
            )
        message = schema.OutputMessage(f"msg_{self._context.request_id}{suffix}", "in_progress", [])
        opening = self._open(message)
        fields = {"item_id": message.id, "content_index": 0}
        return closing + opening + self._event("response.content_part.added", **fields, part=schema.OutputText(""))

    def _new_call(self, name: str) -> schema.FunctionCall:
        item_id = f"fc_{self._context.request_id}_{len(self.items)}"
        return schema.FunctionCall(item_id, "in_progress", new_tool_call_id(self._tool_format), name, "")

    def _open(self, item: schema.OutputItem) -> bytes:
        self.items.append(item)
        self._is_open, self._texts, self._logprobs = True, [], []
        self._delta_start = b""
        return self._event("response.output_item.added", item=item)

    def _text_delta(self, text: str, logprobs: Sequence[TokenLogprobBody]) -> bytes:
        kind = f"response.{_TEXT_EVENTS[self.items[-1].type]}.delta"
        if not logprobs:
            return self._delta(kind, text)
        return self._event(kind, item_id=self.items[-1].id, content_index=0, logprobs=logprobs, delta=text)

    def _delta(self, kind: str, text: str) -> bytes:
        """Return the event for new text; all but text and number is encoded once per item."""
        if not self._delta_start:
            place: dict[str, Any] = {"item_id": self.items[-1].id, "output_index": len(self.items) - 1}
            if not isinstance(self.items[-1], schema.FunctionCall):
                place["content_index"] = 0
            if isinstance(self.items[-1], schema.OutputMessage):
                place["logprobs"] = ()
            fields = encode({"type": kind, **place})[:-1]
            self._delta_start = b"event: %b\ndata: %b" % (kind.encode(), fields + b',"delta":')
        number = self._context.num_events
        self._context.num_events += 1
        return b'%b%b,"sequence_number":%d}\n\n' % (self._delta_start, encode(text), number)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event(self._context, kind, output_index=len(self.items) - 1, **fields)


class ResponsesFormat:
    """Writes one response: reasoning, text and calls as items of their own. Its events are numbered from 0."""

    def __init__(
        self,
        context: RequestContext,
        opening: schema.ResponseObject,
        parser: OutputParser | None,
        tool_format: str,
        *,
        token_bytes: TokenBytes | None,
        is_sealing: bool,
    ) -> None:
        """Begin an answer. `token_bytes` None: no log-probabilities; `is_sealing`: reasoning goes sealed, too."""
        self._context, self._opening = context, opening
        self._parser, self._token_bytes = parser, token_bytes
        self._items = ItemWriter(context, tool_format, is_sealing=is_sealing)
        self._pending: list[TokenLogprobBody] = []
        """Log-probabilities of tokens whose text is held back."""

    def start(self, index: int) -> bytes:  # noqa: ARG002
        """Return the events that open the response, and its message where it can be nothing else."""
        opening = event(self._context, "response.created", response=self._opening)
        opening += event(self._context, "response.in_progress", response=self._opening)
        return opening if self._parser is not None else opening + self._items.open_text("message")

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        """Return the events for new output."""
        if self._token_bytes is not None:
            self._pending += chat_logprobs(delta.logprobs, self._token_bytes).content
        if not delta.text:
            return b""
        return self._write([Content(delta.text)] if self._parser is None else self._parser.push(delta.text))

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:  # noqa: ARG002
        """Return the events that close what is open, and the response."""
        closing = self._close(result)
        response = self._response(result)
        return closing + event(self._context, f"response.{response.status}", response=response)

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the response."""
        (choice,) = choices
        for delta in choice.deltas:
            self.delta(0, delta)
        result = choice.result
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
        rest += self._items.open_text("message") if not self._items.items else b""
        if self._pending and self._items.items[-1].type == "message":  # of tokens without text: the end token
            rest += self._items.write(Content(""), self._pending)
        return rest + self._items.close(_status(result))

    def _response(self, result: GenerationResult) -> schema.ResponseObject:
        return msgspec.structs.replace(
            self._opening,
            status=_status(result),
            incomplete_details={"reason": "max_output_tokens"} if result.reason == "length" else None,
            output=self._items.items,
            usage=_usage(result),
            baton=placement_body(self._context, [result]),
        )


def _status(result: GenerationResult) -> str:
    return "incomplete" if result.reason == "length" else "completed"


RESPONSES_ERRORS = ErrorFormat(
    error_body,
    lambda error, context: event(context, "error", code=error.code, message=error.message, param=error.field),
)


def _usage(result: GenerationResult) -> schema.ResponsesUsage:
    return schema.ResponsesUsage(
        input_tokens=result.num_prompt_tokens,
        input_tokens_details=schema.InputTokens(result.num_cached_tokens),
        output_tokens=result.num_completion_tokens,
        output_tokens_details=schema.ReasoningTokens(result.num_reasoning_tokens or 0),
        total_tokens=result.num_prompt_tokens + result.num_completion_tokens,
    )
