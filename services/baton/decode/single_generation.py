"""One generation as a call of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from baton.decode.generation import DecodeGenerator
from baton.engine.events import Isolated
from baton.engine.sampling import SampledToken
from baton.errors import BatonError
from baton.internal.v1 import decode_service_pb2 as messages
from baton.node.requests import token_to_proto

Write = Callable[[messages.DecodeServiceGenerateResponse], Awaitable[None]]


async def generate_single(
    generator: DecodeGenerator, request: messages.DecodeServiceGenerateRequest, write: Write
) -> None:
    """Generate, writing every message of the response; raise BatonError, and leave nothing, if the request fails."""
    try:
        async with asyncio.TaskGroup() as tasks:
            stream = _SingleStream(request)
            generation = generator.start(request, stream, tasks)
            try:
                accepted = messages.Accepted(node_id=generator.node.node_id)
                await write(messages.DecodeServiceGenerateResponse(accepted=accepted))
                await stream.write_all(write)
            finally:
                generation.close()
    except* BatonError as group:
        raise group.exceptions[0] from None


class _SingleStream:
    """Gathers tokens while a message is written; no more than the request's own output."""

    def __init__(self, request: messages.DecodeServiceGenerateRequest) -> None:
        self._has_logprobs = request.sampling.HasField("top_logprob_count")
        self._prompt: list[messages.PromptChunk] = []
        self._chunk = messages.TokenChunk()
        self._finished: messages.Finished | None = None
        self._error: BatonError | None = None
        self._has_news = asyncio.Event()

    def prompt(self, position: int, tokens: Sequence[SampledToken]) -> None:
        self._prompt.append(messages.PromptChunk(position=position, logprobs=map(token_to_proto, tokens)))
        self._has_news.set()

    def token(self, output_index: int, token: SampledToken) -> None:
        if not self._chunk.token_ids:
            self._chunk.output_index = output_index
        self._chunk.token_ids.append(token.token_id)
        if self._has_logprobs:
            self._chunk.logprobs.append(token_to_proto(token))
        self._has_news.set()

    def isolated(self, isolated: Isolated) -> None:
        isolated.told()  # a call of its own has no others beside it

    def finished(self, finished: messages.Finished) -> None:
        self._finished = finished
        self._has_news.set()

    def failed(self, error: BatonError) -> None:
        self._error = error
        self._has_news.set()

    async def write_all(self, write: Write) -> None:
        """Write until the end; raise BatonError with what the generation failed of."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            if self._error is not None:
                raise self._error
            prompt, self._prompt = self._prompt, []
            chunk, self._chunk = self._chunk, messages.TokenChunk()
            finished = self._finished
            for part in prompt:
                await write(messages.DecodeServiceGenerateResponse(prompt=part))
            if chunk.token_ids:
                await write(messages.DecodeServiceGenerateResponse(tokens=chunk))
            if finished is not None:
                await write(messages.DecodeServiceGenerateResponse(finished=finished))
                return
