"""Answers of POST /v1/completions. What stays the same in every event of a stream is encoded once."""

from __future__ import annotations

from collections.abc import Sequence

from baton.gateway.answer_format import Choice, encode
from baton.gateway.openai_logprobs import CompletionLogprobs, TokenBytes, completion_logprobs
from baton.gateway.openai_prompt_logprobs import echoed_logprobs, prompt_positions
from baton.gateway.openai_usage import PlacementBody, UsageBody
from baton.gateway.requests import Delta, GenerationResult


class CompletionFormat:
    """Writes one text completion."""

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_seconds: int,
        *,
        num_logprobs: int | None,
        num_prompt_logprobs: int | None = None,
        has_usage: bool,
        token_bytes: TokenBytes,
        echoes: Sequence[str] = (),
    ) -> None:
        """Begin an answer.

        Args:
            answer_id: Name of the answer.
            model: Served name.
            created_seconds: Unix time.
            num_logprobs: Alternatives told per token; None: no log-probabilities.
            num_prompt_logprobs: Likewise of the prompt, whether or not it is echoed.
            has_usage: Whether a stream's last event reports the usage.
            token_bytes: Gives the bytes of a token.
            echoes: The prompt's text per choice, to be repeated before its output; empty: not asked for.
        """
        self._common = {"id": answer_id, "object": "text_completion", "created": created_seconds, "model": model}
        self._num_logprobs = num_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._token_bytes = token_bytes
        self._num_characters: dict[int, int] = {}
        self._echoes = dict(enumerate(echoes))
        self._start = b"data: " + encode(self._common)[:-1] + b',"choices":['
        self._tail = b',"usage":null' if has_usage else b""
        self._end = b',"logprobs":null,"finish_reason":null}]' + self._tail + b"}\n\n"

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the event for new output of a choice, its echo before the first; empty if there is nothing to see."""
        end = self._end
        text = self._echoes.pop(index, "") + delta.text if self._echoes else delta.text
        if self._num_logprobs is not None and delta.logprobs:
            logprobs = self._logprobs(index, delta)
            end = b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail + b"}\n\n"
        elif not text:
            return b""
        return b'%b{"index":%d,"text":%b%b' % (self._start, index, encode(text), end)

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the event with the finish reason."""
        baton = b',"baton":' + encode(placement) if placement is not None else b""
        rest, reason = encode(self._echoes.pop(index, "")), result.reason.encode()
        choice = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":"%b"}' % (index, rest, reason)
        return self._start + choice + b"]" + self._tail + baton + b"}\n\n"

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""
        return self._start + b'],"usage":' + encode(usage) + b',"baton":' + encode(placement) + b"}\n\n"

    def whole(self, choices: Sequence[Choice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""
        bodies = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        return encode({**self._common, "choices": bodies, "usage": usage, "baton": placement})

    def _logprobs(self, index: int, delta: Delta) -> bytes:
        body = completion_logprobs(delta.logprobs, self._token_bytes, self._num_characters.get(index, 0))
        self._num_characters[index] = body.text_offset[-1] + len(body.tokens[-1])
        return encode(body)

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, object]:
        body = {
            "index": index,
            "text": self._echoes.get(index, "") + choice.text,
            "logprobs": self._whole_logprobs(index, choice),
            "finish_reason": choice.result.reason,
        }
        prompt = choice.result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        return body

    def _whole_logprobs(self, index: int, choice: Choice) -> CompletionLogprobs | None:
        if self._num_logprobs is None:
            return None
        prompt = choice.result.prompt
        if index in self._echoes and prompt is not None:
            return echoed_logprobs(prompt, self._num_logprobs, choice.logprobs, self._token_bytes)
        return completion_logprobs(choice.logprobs, self._token_bytes, 0)
