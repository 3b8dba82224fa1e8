"""Answers of POST /v1/chat/completions. What stays the same in every event of a stream is encoded once."""

from __future__ import annotations

from collections.abc import Sequence

from baton.gateway.answer_format import Choice, encode
from baton.gateway.chat_reading import DeltaBody, ReadAnswer, Reading
from baton.gateway.openai_logprobs import ChatLogprobs, TokenBytes, chat_logprobs
from baton.gateway.openai_prompt_logprobs import prompt_positions
from baton.gateway.openai_usage import PlacementBody, UsageBody
from baton.gateway.requests import Delta, GenerationResult


class ChatFormat:
    """Writes one chat answer.

    An event is `start index middle content end`: only index and content differ between the events of a stream.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_seconds: int,
        *,
        has_logprobs: bool,
        num_prompt_logprobs: int | None = None,
        has_usage: bool,
        token_bytes: TokenBytes,
        read: ReadAnswer = lambda: None,
    ) -> None:
        """Begin an answer.

        Args:
            answer_id: Name of the answer.
            model: Served name.
            created_seconds: Unix time.
            has_logprobs: Whether they were asked for.
            num_prompt_logprobs: Alternatives told per token of the prompt; None: no log-probabilities of it.
            has_usage: Whether a stream's last event reports the usage.
            token_bytes: Gives the bytes of a token.
            read: Makes what reads one choice's answer; None from it: the text is all.
        """
        self._common = {"id": answer_id, "created": created_seconds, "model": model}
        self._has_logprobs = has_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._token_bytes = token_bytes
        self._opened: set[int] = set()
        self._read = read
        self._readings: dict[int, Reading] = {}
        fields = encode(
            {"id": answer_id, "object": "chat.completion.chunk", "created": created_seconds, "model": model}
        )
        self._start = b"data: " + fields[:-1] + b',"choices":['
        self._tail = b',"usage":null' if has_usage else b""
        self._end = b'},"logprobs":null,"finish_reason":null}]' + self._tail + b"}\n\n"

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice, the role before the first."""
        opening = b"" if index in self._opened else self._open(index)
        if index in self._readings:
            return opening + self._read_delta(index, delta)
        if self._has_logprobs and delta.logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, self._token_bytes))
            end = b'},"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail + b"}\n\n"
        elif delta.text:
            end = self._end
        else:
            return opening
        content = encode(delta.text)
        return b'%b%b{"index":%d,"delta":{"content":%b%b' % (opening, self._start, index, content, end)

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the event with the finish reason."""
        opening = b"" if index in self._opened else self._open(index)
        baton = b',"baton":' + encode(placement) if placement is not None else b""
        reason: str = result.reason
        if reading := self._readings.get(index):
            opening += self._part_events(index, reading.finish(), None)
            reason = reading.finish_reason(result.reason)
        choice = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}' % (index, reason.encode())
        return opening + self._start + choice + b"]" + self._tail + baton + b"}\n\n"

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""
        return self._start + b'],"usage":' + encode(usage) + b',"baton":' + encode(placement) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""
        body = {
            **self._common,
            "object": "chat.completion",
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
            "baton": placement,
        }
        prompt = choices[0].result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        return encode(body)

    def _open(self, index: int) -> bytes:
        self._opened.add(index)
        if reading := self._read():
            self._readings[index] = reading
        role = b'{"index":%d,"delta":{"role":"assistant","content":""' % index
        return self._start + role + self._end

    def _read_delta(self, index: int, delta: Delta) -> bytes:
        logprobs = None
        if self._has_logprobs and delta.logprobs:
            logprobs = chat_logprobs(delta.logprobs, self._token_bytes)
        return self._part_events(index, self._readings[index].push(delta.text), logprobs)

    def _part_events(self, index: int, parts: Sequence[DeltaBody], logprobs: ChatLogprobs | None) -> bytes:
        """Return one event per part; the first has the log-probabilities, also of tokens that gave no part yet."""
        if logprobs is not None and not parts:
            parts = [DeltaBody()]
        events = []
        for part in parts:
            choice = {"index": index, "delta": part, "logprobs": logprobs, "finish_reason": None}
            events.append(self._start + encode(choice) + b"]" + self._tail + b"}\n\n")
            logprobs = None
        return b"".join(events)

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
        reason: str = choice.result.reason
        if reading := self._read():
            message |= reading.message(choice.text)
            reason = reading.finish_reason(choice.result.reason)
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs, self._token_bytes) if self._has_logprobs else None,
            "finish_reason": reason,
        }
