"""The blocks of a message, and the events of a stream that build them up. Answers of POST /v1/messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import structs

from baton.gateway.access.admission import RequestContext
from baton.gateway.api.answer import FinishedChoice, encode
from baton.gateway.api.anthropic import schema
from baton.gateway.api.usage import IgnoredBody, placement_body
from baton.gateway.generation.requests import Delta, GenerationResult
from baton.gateway.generation.tools import new_tool_call_id
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, joined

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""Type of a block's delta, and its field, by the type of the block."""


def event(kind: str, **fields: Any) -> bytes:
    """Return an event."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


class BlockWriter:
    """Writes blocks one after the other; at most one is open. Whole answers drop the events."""

    def __init__(self) -> None:
        self.blocks: list[schema.OutputBlock] = []
        """Complete ones, and the open one last."""
        self.has_calls = False
        """Whether one of them is a call."""
        self._is_open = False
        self._texts: list[str] = []
        self._delta_start = b""

    def write(self, part: OutputPart) -> bytes:
        """Return the events of a part of the answer."""
        match part:
            case CallStart(_, name):
                self.has_calls = True
                return self.close() + self._open(schema.ToolUseBlock(new_tool_call_id("", "toolu_"), name, {}))
            case CallArguments(_, text):
                return self._delta(text)
            case CallEnd():
                return self.close()
            case _:
                is_text = isinstance(part, Content)
                opening = self.open_text() if is_text else self._open_unless("thinking", schema.ThinkingBlock(""))
                return opening + self._delta(part.text)

    def open_text(self) -> bytes:
        """Return the events that open a block of text."""
        return self._open_unless("text", schema.TextBlock(""))

    def close(self) -> bytes:
        """Return the event that closes the open block, if there is one."""
        if not self._is_open:
            return b""
        self._is_open = False
        self.blocks[-1] = _with_text(self.blocks[-1], "".join(self._texts))
        return event("content_block_stop", index=len(self.blocks) - 1)

    def _open_unless(self, kind: str, block: schema.OutputBlock) -> bytes:
        if self._is_open and self.blocks[-1].type == kind:
            return b""
        return self.close() + self._open(block)

    def _open(self, block: schema.OutputBlock) -> bytes:
        self.blocks.append(block)
        self._is_open, self._texts = True, []
        index = len(self.blocks) - 1
        kind, field = _DELTAS[block.type]
        place = encode({"type": "content_block_delta", "index": index, "delta": {"type": kind}})[:-2]
        self._delta_start = b"event: content_block_delta\ndata: " + place + b',"%b":' % field.encode()
        return event("content_block_start", index=index, content_block=block)

    def _delta(self, text: str) -> bytes:
        """Return the event for new text; all but the text is encoded once per block."""
        self._texts.append(text)
        return self._delta_start + encode(text) + b"}}\n\n"


def _with_text(block: schema.OutputBlock, text: str) -> schema.OutputBlock:
    """Return a complete block; a call whose arguments are no JSON object, which has no place for them, as text."""
    if isinstance(block, schema.TextBlock):
        return schema.TextBlock(text)
    if isinstance(block, schema.ThinkingBlock):
        return schema.ThinkingBlock(text)
    try:
        arguments = msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return schema.TextBlock(text)
    return schema.ToolUseBlock(block.id, block.name, arguments)


class MessageFormat:
    """Writes one message: thinking, text and calls as blocks of their own."""

    def __init__(
        self, context: RequestContext, body: schema.MessagesBody, num_prompt_tokens: int, parser: OutputParser | None
    ) -> None:
        self._id = context.answer_id = f"msg_{context.request_id}"
        self._context = context
        self._model = body.model
        self._max_tokens = body.max_tokens
        self._num_prompt_tokens, self._parser = num_prompt_tokens, parser
        self._blocks = BlockWriter()

    def start(self, index: int) -> bytes:  # noqa: ARG002
        """Return the events that open the message, and its block where it can only be text. Cached is not known yet."""
        usage = schema.MessagesUsage(self._num_prompt_tokens, 0, 0)
        message = msgspec.to_builtins(schema.MessageAnswer(self._id, self._model, [], usage))
        if self._context.ignored:
            message["baton"] = IgnoredBody(self._context.ignored)
        opening = event("message_start", message=message)
        return opening if self._parser is not None else opening + self._blocks.open_text()

    def delta(self, index: int, delta: Delta) -> bytes:  # noqa: ARG002
        """Return the events for new output."""
        if not delta.text:
            return b""
        if self._parser is None:
            return self._blocks.write(Content(delta.text))
        return b"".join(map(self._blocks.write, joined(self._parser.push(delta.text))))

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:  # noqa: ARG002
        """Return the events that close what is open and the message; the usage is that of the whole."""
        closing = self._close()
        delta = {"stop_reason": self._stop_reason(result), "stop_sequence": result.stop}
        placement = structs.replace(placement_body(self._context, [result]), ignored=[])
        closing += event("message_delta", delta=delta, usage=_usage(result), baton=placement)
        return closing + event("message_stop")

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the message."""
        (choice,) = choices
        for delta in choice.deltas:
            self.delta(0, delta)
        result = choice.result
        self._close()
        return encode(
            schema.MessageAnswer(
                self._id,
                self._model,
                self._blocks.blocks,
                _usage(result),
                self._stop_reason(result),
                result.stop,
                baton=placement_body(self._context, [result]),
            )
        )

    def _close(self) -> bytes:
        parts = joined(self._parser.finish()) if self._parser is not None else ()
        rest = b"".join(map(self._blocks.write, parts))
        opening = self._blocks.open_text() if not self._blocks.blocks else b""
        return rest + opening + self._blocks.close()

    def _stop_reason(self, result: GenerationResult) -> str:
        if result.stop is not None:
            return "stop_sequence"
        if result.reason == "length":
            is_full = result.num_completion_tokens < self._max_tokens and not result.degraded_max_tokens
            return "model_context_window_exceeded" if is_full else "max_tokens"
        return "tool_use" if self._blocks.has_calls else "end_turn"


def _usage(result: GenerationResult) -> schema.MessagesUsage:
    return schema.MessagesUsage(
        input_tokens=result.num_prompt_tokens - result.num_cached_tokens,
        cache_read_input_tokens=result.num_cached_tokens,
        output_tokens=result.num_completion_tokens,
    )
