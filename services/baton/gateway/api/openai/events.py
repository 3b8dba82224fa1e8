"""The events of chat and text completions: what both have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from baton.gateway.api.answer import DONE, AnswerJob, FinishedChoice, encode
from baton.gateway.api.openai.schema import CommonBody
from baton.gateway.api.usage import placement_body, usage_body
from baton.gateway.generation.requests import Delta, GenerationResult


class CompletionWriter:
    """What the answers of chat and text completions have in common. What stays the same in every event is encoded once.

    An event is `start choice end`; the last one of a choice, and the one with the usage, bring `baton`.
    """

    _CHOICE_END: ClassVar[bytes]
    """What follows the text of a choice that goes on and has no log-probabilities."""

    def __init__(self, job: AnswerJob, id_prefix: str, kind: str, body: CommonBody) -> None:
        self._context = context = job.context
        context.answer_id = f"{id_prefix}-{context.request_id}"
        self._common = {"id": context.answer_id, "object": kind, "created": int(time.time()), "model": body.model}
        self._num_choices = job.num_choices
        self._prompts = [prompt.token_ids for prompt in job.prompts]
        self._has_token_ids = bool(body.return_token_ids)
        self._num_tokens = [0] * job.num_generations
        options = body.stream_options
        self._has_usage = bool(options and options.include_usage)
        self._has_running_usage = bool(options and options.include_usage and options.continuous_usage_stats)
        self._start = b"data: " + encode(self._common)[:-1] + b',"choices":['
        self._tail = b',"usage":null' if self._has_usage else b""
        self._end = self._CHOICE_END + self._tail + b"}\n\n"

    def _count(self, index: int, num_tokens: int) -> None:
        """Count tokens of a choice; where that was asked for, its next event tells the usage of the choice so far."""
        if not self._has_running_usage:
            return
        self._num_tokens[index] += num_tokens
        counts = len(self._prompts[index // self._num_choices]), self._num_tokens[index]
        names = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
        self._tail = names % (*counts, sum(counts))
        self._end = self._CHOICE_END + self._tail + b"}\n\n"

    def _end_of(self, delta: Delta, logprobs: bytes = b"null") -> bytes:
        """Return what follows the text of a choice that goes on: its log-probabilities as JSON, and its tokens."""
        if logprobs == b"null" and not self._has_token_ids:
            return self._end
        start, ids = self._CHOICE_END.partition(b"null")[0], self._token_ids(delta.token_ids)
        return start + logprobs + b',"finish_reason":null' + ids + b"}]" + self._tail + b"}\n\n"

    def _token_ids(self, token_ids: Sequence[int], name: bytes = b"token_ids") -> bytes:
        """Return a field of tokens, where they were asked for."""
        return b',"%b":%b' % (name, encode(list(token_ids))) if self._has_token_ids else b""

    def _stop_reason(self, result: GenerationResult) -> bytes:
        """Return the field of the stop string that ended a choice."""
        return b',"stop_reason":' + encode(result.stop) if result.stop is not None else b""

    def _further_fields(self, choice: FinishedChoice) -> dict[str, object]:
        """Return the same fields of a whole choice."""
        fields: dict[str, object] = {} if choice.result.stop is None else {"stop_reason": choice.result.stop}
        if self._has_token_ids:
            fields["token_ids"] = [token_id for delta in choice.deltas for token_id in delta.token_ids]
        return fields

    def _last_event(self, index: int, choice: bytes, results: Sequence[GenerationResult]) -> bytes:
        """Return the event that ends a choice, and those that end the stream if there are results of all."""
        self._count(index, 0)
        event = self._start + choice + b"]" + self._tail
        if not results:
            return event + b"}\n\n"
        placement = b',"baton":' + encode(placement_body(self._context, results)) + b"}\n\n"
        if not self._has_usage:
            return event + placement + DONE
        usage = encode(usage_body(results, self._num_choices))
        return event + b"}\n\n" + self._start + b'],"usage":' + usage + placement + DONE

    def _body(self, choices: Sequence[FinishedChoice], bodies: Sequence[dict[str, object]]) -> dict[str, object]:
        results = [choice.result for choice in choices]
        return {
            **self._common,
            "choices": bodies,
            "usage": usage_body(results, self._num_choices),
            "baton": placement_body(self._context, results),
        }
