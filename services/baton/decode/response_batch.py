"""The message that gathers for a gateway while another is written to it."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.sampling import SampledToken
from baton.errors import BatonError
from baton.rpc.status import code_of
from baton.rpc.wire_generation import token_to_proto
from baton.v1 import decode_service_pb2 as messages

MAX_TOKENS = 100_000
"""Tokens of one message: 30 MB at most, with all log-probabilities, of the 64 MiB that a message may have."""


class ResponseBatch:
    """Gathers what the streams of a call say; a message field per list, so that a token costs three appends."""

    def __init__(self) -> None:
        self._accepted: list[int] = []
        self._prompts: list[messages.StreamPrompt] = []
        self._stream_ids: list[int] = []
        self._output_indexes: list[int] = []
        self._token_ids: list[int] = []
        self._chunks: list[messages.StreamTokens] = []
        self._finished: list[messages.StreamFinished] = []
        self._failed: list[messages.StreamFailed] = []
        self._is_engine_alive = False
        self._num_prompt_tokens = 0

    @property
    def is_full(self) -> bool:
        """Return whether the next token belongs to another message."""
        return len(self._token_ids) + len(self._chunks) + self._num_prompt_tokens >= MAX_TOKENS

    def add_accepted(self, stream_id: int) -> None:
        """Say that a stream was taken."""
        self._accepted.append(stream_id)

    def add_prompt(self, stream_id: int, position: int, tokens: Sequence[SampledToken]) -> None:
        """Add log-probabilities of a prompt."""
        chunk = messages.PromptChunk(position=position, logprobs=map(token_to_proto, tokens))
        self._prompts.append(messages.StreamPrompt(stream_id=stream_id, chunk=chunk))
        self._num_prompt_tokens += len(tokens)

    def add_token(self, stream_id: int, output_index: int, token_id: int) -> None:
        """Add a token."""
        self._stream_ids.append(stream_id)
        self._output_indexes.append(output_index)
        self._token_ids.append(token_id)

    def add_token_with_logprobs(self, stream_id: int, output_index: int, token: SampledToken) -> None:
        """Add a token with its log-probabilities."""
        chunk = messages.TokenChunk(
            output_index=output_index, token_ids=[token.token_id], logprobs=[token_to_proto(token)]
        )
        self._chunks.append(messages.StreamTokens(stream_id=stream_id, chunk=chunk))

    def add_finished(self, stream_id: int, finished: messages.Finished) -> None:
        """Say that a stream has ended well."""
        self._finished.append(messages.StreamFinished(stream_id=stream_id, finished=finished))

    def add_failed(self, stream_id: int, error: BatonError) -> None:
        """Say that a stream has failed, in the words of `rpc/status.py`."""
        failed = messages.StreamFailed(
            stream_id=stream_id,
            code=code_of(error).value[0],
            message=error.message,
            reason=error.reason,
            metadata=error.metadata,
        )
        self._failed.append(failed)

    def add_engine_alive(self) -> None:
        """Say that the engine has answered."""
        self._is_engine_alive = True

    def message(self) -> messages.ServeResponse:
        """Return what has been gathered."""
        return messages.ServeResponse(
            accepted_stream_ids=self._accepted,
            prompts=self._prompts,
            token_stream_ids=self._stream_ids,
            token_output_indexes=self._output_indexes,
            token_ids=self._token_ids,
            tokens=self._chunks,
            finished=self._finished,
            failed=self._failed,
            is_engine_alive=self._is_engine_alive,
        )
