"""One attempt at a generation on one node: takes what the node says, by callbacks, and watches its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from baton.errors import BatonError, StreamBrokenError, UnavailableError
from baton.gateway.generation.requests import GenerationState
from baton.internal.v1.decode_service_pb2 import Finished, PromptChunk
from baton.internal.v1.router_service_pb2 import Placement
from baton.kv.hashing import HASH_BYTES, BlockHash, block_hashes, join_hashes
from baton.v1.generation_pb2 import FINISH_REASON_LENGTH, FINISH_REASON_STOP, PlacementSummary, TokenLogprob, Usage

TOKEN_TIMEOUT = "TOKEN_TIMEOUT"  # noqa: S105 - a token of a language model
"""Reason of an attempt that ended because its node was silent for too long."""

TakeTokens: TypeAlias = Callable[[Sequence[int], Sequence[TokenLogprob]], bool]
"""Takes the next tokens, and their log-probabilities if asked for; returns whether they end the generation."""


class Attempt:
    """Told what the node says, by callbacks; the request's task waits for `ended` alone.

    Invariant: `_output` is extended at its end only, so no token is missing and none is there twice.
    """

    def __init__(
        self,
        output_token_ids: list[int],
        prompt_logprobs: list[TokenLogprob],
        take: TakeTokens,
        *,
        max_tokens: int,
        first_token_timeout_seconds: float,
        token_timeout_seconds: float,
        on_leaving: Callable[[Attempt], None] | None = None,
        on_first: Callable[[], None] | None = None,
    ) -> None:
        """Begin to watch.

        `max_tokens` bounds the whole output; the timeouts are silences. `on_leaving` is called when the node is about
        to go, `on_first` once, with its first token.
        """
        self.ended: asyncio.Future[Finished | None] = asyncio.get_running_loop().create_future()
        """What the node reported at the end; None if the tokens taken ended it; else why the attempt failed."""
        self._output = output_token_ids
        self._prompt_logprobs, self._take = prompt_logprobs, take
        self._max_tokens, self._on_leaving = max_tokens, on_leaving
        self._on_first, self._token_timeout_seconds = on_first, token_timeout_seconds
        self._watch = _SilenceWatch(self._on_silence, first_token_timeout_seconds)

    def take_tokens(
        self, now_seconds: float, output_index: int, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] = ()
    ) -> None:
        """Take consecutive tokens, the first at `output_index` of the output, which those dropped repeat."""
        if self.ended.done():
            return
        self._watch.progress_seconds = now_seconds
        self._watch.timeout_seconds = self._token_timeout_seconds
        try:
            if self._on_first is not None:
                on_first, self._on_first = self._on_first, None
                on_first()
            if (num_known := len(self._output) - output_index) > 0:  # an earlier node has gone on meanwhile
                token_ids, logprobs = token_ids[num_known:], logprobs[num_known:]
            self._check_next(output_index, len(token_ids))
            if token_ids:
                self._output += token_ids
                if self._take(token_ids, logprobs):
                    self.ended.set_result(None)
        except Exception as error:  # the edge of the request: others are told by the same message
            self.fail(error)

    def take_prompt(self, now_seconds: float, chunk: PromptChunk) -> None:
        """Take log-probabilities of consecutive tokens of the prompt; those that are there already are dropped."""
        if self.ended.done():
            return
        self._watch.progress_seconds = now_seconds
        next_position = 1 + len(self._prompt_logprobs)
        if chunk.position == next_position:
            self._prompt_logprobs += chunk.logprobs
        elif chunk.position + len(chunk.logprobs) > next_position:
            text = f"expected prompt position {next_position}, got a chunk that begins at {chunk.position}"
            self.fail(StreamBrokenError(text))

    def note_progress(self, now_seconds: float) -> None:
        """Note that the node works on, without a token of this attempt."""
        self._watch.progress_seconds = now_seconds

    def leave(self) -> None:
        """Take note that the node is about to go: it goes on only for so long."""
        if self._on_leaving is not None and not self.ended.done():
            self._on_leaving(self)

    def give_up(self) -> None:
        """End for another node that goes on."""
        self.fail(UnavailableError("another node goes on", reason="MOVED"))

    def finish(self, finished: Finished) -> None:
        """End as the node reports."""
        if not self.ended.done():
            self.ended.set_result(finished)

    def fail(self, error: Exception) -> None:
        """End with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def close(self) -> None:
        """Stop watching; nobody waits for `ended` any more, not even for a failure that came too late."""
        self._watch.stop()
        if self.ended.done() and not self.ended.cancelled():
            self.ended.exception()

    def _check_next(self, output_index: int, num_new_tokens: int) -> None:
        next_index = len(self._output)
        if output_index > next_index:
            raise StreamBrokenError(f"expected output token {next_index}, got a chunk that begins at {output_index}")
        if next_index + num_new_tokens > self._max_tokens:
            raise StreamBrokenError(f"expected {self._max_tokens} output tokens at most, got {num_new_tokens} more")

    def _on_silence(self, timeout_seconds: float) -> None:
        text = f"the decode node sent no token for {timeout_seconds:g} s"
        self.fail(UnavailableError(text, reason=TOKEN_TIMEOUT))


class _SilenceWatch:
    """Tells of a time without progress. One timer per attempt, moved only when it fires: tokens cost little."""

    __slots__ = ("_loop", "_on_silence", "_timer", "progress_seconds", "timeout_seconds")

    def __init__(self, on_silence: Callable[[float], None], timeout_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_silence = on_silence
        self.progress_seconds = self._loop.time()
        self.timeout_seconds = timeout_seconds
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(timeout_seconds, self._on_timer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        deadline = self.progress_seconds + self.timeout_seconds
        if self._loop.time() < deadline:
            self._timer = self._loop.call_at(deadline, self._on_timer)
            return
        self._timer = None
        self._on_silence(self.timeout_seconds)


def closed_error() -> BatonError:
    """Return why an attempt fails whose connection the gateway has closed."""
    return UnavailableError("the connection to the decode node was closed", reason="CHANNEL_CLOSED")


def hashes_of(generation: GenerationState) -> bytes:
    """Return the chained hashes of the full blocks of prompt and output, joined: what caches may have of them."""
    prompt, num_hashed = generation.prompt, len(generation.prompt.block_hashes) // HASH_BYTES
    if not num_hashed:
        return b""
    rest = [*prompt.token_ids[num_hashed * prompt.block_tokens :], *generation.output_token_ids]
    last = BlockHash(prompt.block_hashes[-HASH_BYTES:])
    return prompt.block_hashes + join_hashes(block_hashes(last, rest, prompt.block_tokens))


def ending_of(generation: GenerationState) -> Finished | None:
    """Return how a generation ended if its tokens say so although its node could not any more, else None."""
    output = generation.output_token_ids
    assert generation.placement is not None
    if output and output[-1] in generation.prompt.end_token_ids:
        reason = FINISH_REASON_STOP
    elif len(output) >= generation.sampling.max_token_count:
        reason = FINISH_REASON_LENGTH
    else:
        return None
    usage = Usage(cached_token_count=generation.num_expected_cached_tokens)
    return Finished(reason=reason, usage=usage, summary=planned_summary(generation.placement))


def planned_summary(placement: Placement) -> PlacementSummary:
    """Return what is known of a placement whose decode node could not report on it."""
    return PlacementSummary(
        decode_node_id=placement.decode_node_id,
        prefill_node_id=placement.prefill_node_id or placement.decode_node_id,
        placement_id=placement.placement_id,
    )
