"""Answers of POST /v1/messages."""

from __future__ import annotations

from baton.gateway.anthropic_blocks import BlockWriter, encode, event
from baton.gateway.anthropic_schema import MessageAnswer, MessagesUsage
from baton.gateway.requests import Delta, GenerationResult
from baton.text.answer_parser import AnswerParser
from baton.text.output_parts import Content, joined


class MessageFormat:
    """Writes one message: thinking, text and calls as blocks of their own."""

    def __init__(self, answer_id: str, model: str, num_prompt_tokens: int, parser: AnswerParser | None) -> None:
        """Begin an answer.

        Args:
            answer_id: Name of the answer.
            model: Served name.
            num_prompt_tokens: Tokens of the prompt.
            parser: Reads the answer; None: all of it is text.
        """
        self._id = answer_id
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._parser = parser
        self._blocks = BlockWriter()

    def start(self) -> bytes:
        """Return the events that open the message, and its block where it can be nothing but text.

        What was cached is not known yet.
        """
        usage = MessagesUsage(self._num_prompt_tokens, 0, 0)
        opening = event("message_start", message=MessageAnswer(self._id, self._model, [], usage))
        return opening if self._parser is not None else opening + self._blocks.open_text()

    def delta(self, delta: Delta) -> bytes:
        """Return the events for new output."""
        if not delta.text:
            return b""
        if self._parser is None:
            return self._blocks.write(Content(delta.text))
        return b"".join(map(self._blocks.write, joined(self._parser.push(delta.text))))

    def finish(self, result: GenerationResult) -> bytes:
        """Return the events that close what is open and the message; the usage is that of the whole."""
        closing = self._close()
        delta = {"stop_reason": self._stop_reason(result), "stop_sequence": result.stop}
        return closing + event("message_delta", delta=delta, usage=_usage(result)) + event("message_stop")

    def whole(self, result: GenerationResult) -> bytes:
        """Return the message."""
        self._close()
        reason = self._stop_reason(result)
        return encode(MessageAnswer(self._id, self._model, self._blocks.blocks, _usage(result), reason, result.stop))

    def _close(self) -> bytes:
        parts = joined(self._parser.finish()) if self._parser is not None else ()
        rest = b"".join(map(self._blocks.write, parts))
        opening = self._blocks.open_text() if not self._blocks.blocks else b""
        return rest + opening + self._blocks.close()

    def _stop_reason(self, result: GenerationResult) -> str:
        if result.stop is not None:
            return "stop_sequence"
        if result.reason == "length":
            return "max_tokens"
        return "tool_use" if self._blocks.has_calls else "end_turn"


def _usage(result: GenerationResult) -> MessagesUsage:
    return MessagesUsage(
        input_tokens=result.num_prompt_tokens - result.num_cached_tokens,
        cache_read_input_tokens=result.num_cached_tokens,
        output_tokens=result.num_completion_tokens,
    )
