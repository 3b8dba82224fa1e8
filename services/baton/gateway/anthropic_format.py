"""Answers of POST /v1/messages."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.anthropic_schema import MessageAnswer, MessagesUsage, TextBlock
from baton.gateway.requests import GenerationResult

_DELTA_START = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
)
_DELTA_END = b"}}\n\n"

encode = msgspec.json.encode


class MessageFormat:
    """Writes one message; it has one block of text."""

    def __init__(self, answer_id: str, model: str, num_prompt_tokens: int) -> None:
        self._id = answer_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens

    def start(self) -> bytes:
        """Return the events that open the message and its block; what was cached is not known yet."""
        usage = MessagesUsage(self._num_prompt_tokens, 0, 0)
        message = MessageAnswer(self._id, self._model, [], usage)
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block=TextBlock("")
        )

    def delta(self, text: str) -> bytes:
        """Return the event for new text."""
        return _DELTA_START + encode(text) + _DELTA_END

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that close the block and the message; the usage is that of the whole."""
        delta = {"stop_reason": _stop_reason(result), "stop_sequence": result.stop}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=_usage(result))
            + _event("message_stop")
        )

    def whole(self, text: str, result: GenerationResult) -> bytes:
        """Return the message."""
        content = [TextBlock(text)]
        return encode(MessageAnswer(self._id, self._model, content, _usage(result), _stop_reason(result), result.stop))


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


def _stop_reason(result: GenerationResult) -> str:
    if result.stop is not None:
        return "stop_sequence"
    return "max_tokens" if result.reason == "length" else "end_turn"


def _usage(result: GenerationResult) -> MessagesUsage:
    return MessagesUsage(
        input_tokens=result.num_prompt_tokens - result.num_cached_tokens,
        cache_read_input_tokens=result.num_cached_tokens,
        output_tokens=result.num_completion_tokens,
    )
