"""The public gRPC API, baton.v1.GenerationService, on the same core as REST."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from baton.errors import BatonError, InvalidFieldError
from baton.gateway.access.admission import (
    REQUEST_ID_HEADER,
    AccessControl,
    RequestContext,
    accept_request_id,
    generation_name,
    objectives_of,
)
from baton.gateway.api.body import MAX_MESSAGES
from baton.gateway.cluster.router_client import ModelCatalog
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import (
    ChatPrompt,
    Delta,
    GenerationRequest,
    GenerationResult,
    PreparedPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
)
from baton.gateway.http.messages import HeldBytes
from baton.rpc.error_interceptor import Context
from baton.rpc.status import code_of
from baton.v1.generation_pb2 import (
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    SamplingParameters,
    StructuredOutput,
    TokenLogprob,
    Usage,
)
from baton.v1.generation_service_pb2 import (
    GenerateRequest,
    GenerateResponse,
    GenerationEnd,
    ListModelsRequest,
    ListModelsResponse,
    Model,
)
from baton.v1.generation_service_pb2_grpc import GenerationServiceServicer

Write = Callable[[GenerateResponse], Awaitable[None]]


class GrpcWriter:
    """Takes deltas without blocking, and writes them while `run` runs.

    What waits is part of the generation's own output, which its token limit bounds. A client that takes nothing is
    noticed by the connection's pings, or by the request's time limit.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: deque[GenerateResponse] = deque()
        self._has_news = asyncio.Event()
        self._is_closed = False

    def take(self, delta: Delta) -> None:
        """Take the next output."""
        if not self._waiting or len(self._waiting[-1].token_ids) >= _MAX_ENTRIES:
            self._waiting.append(GenerateResponse())
        waiting = self._waiting[-1]
        waiting.text += delta.text
        waiting.token_ids.extend(delta.token_ids)
        waiting.logprobs.extend(delta.logprobs)
        self._has_news.set()

    def close(self) -> None:
        """Let `run` return once all is written."""
        self._is_closed = True
        self._has_news.set()

    async def run(self) -> None:
        """Write what comes until `close`."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            while self._waiting:
                await self._write(self._waiting.popleft())
            if self._is_closed:
                return


SERVICE_NAME = "baton.v1.GenerationService"

_ROLES = ("system", "user", "assistant")
_INPUT_FIELDS = {"text": "text", "conversation": "conversation.messages", "tokens": "tokens.token_ids"}
"""What is to blame for a bad prompt, by the input that was given."""
_FIELD_NAMES = {name: f"sampling.{name}" for name in SamplingParameters.DESCRIPTOR.fields_by_name} | {
    f"structured_output.{name}": f"sampling.structured_output.{name}"
    for name in StructuredOutput.DESCRIPTOR.fields_by_name
}
_MAX_ENTRIES = 1024
"""Of a message: tokens with 20 alternatives each are then well below the 4 MiB that clients take."""
_LATE_SECONDS = 0.05
"""Clients cancel a call whose deadline comes as it comes, or a moment before."""
_REASONS = {"stop": FINISH_REASON_STOP, "length": FINISH_REASON_LENGTH}


class GenerationServicer(GenerationServiceServicer):
    """Serves baton.v1.GenerationService."""

    def __init__(
        self,
        generator: TextGenerator,
        catalog: ModelCatalog,
        access: AccessControl,
        held: HeldBytes,
    ) -> None:
        self._held = held
        self._generator = generator
        self._catalog = catalog
        self._access = access

    async def Generate(self, request: GenerateRequest, context: Context) -> None:  # noqa: N802
        """Generate and stream."""
        with self._watch(context) as asked:
            await context.send_initial_metadata(((REQUEST_ID_HEADER, asked.request_id),))
            await self._generate(request, asked, context)

    async def _generate(self, request: GenerateRequest, asked: RequestContext, context: Context) -> None:
        with (
            self._access.admission.slot(asked.key_name),
            self._held.holding(request.ByteSize()),
            self._access.refusals.watch(asked.key_name, request.ByteSize(), has_objectives=any(asked.objectives)),
        ):
            try:
                async with self._access.deadlines.limit():
                    prompt = await self._generator.prepare(self._from_wire(request, asked, context.time_remaining()))
                    result = await self._stream(prompt, asked, context.write)
                    for logprobs in _pieces(result.prompt.logprobs if result.prompt else ()):
                        await context.write(GenerateResponse(prompt_logprobs=logprobs))
                    await context.write(_end(result))
            except TimeoutError:
                asked.status = grpc.StatusCode.DEADLINE_EXCEEDED.name
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request took too long")

    async def ListModels(self, request: ListModelsRequest, context: Context) -> ListModelsResponse:  # noqa: ARG002, N802
        """List the models."""
        self._access.authenticate(_metadata(context))
        catalog = self._catalog
        names = (catalog.model_name, *catalog.adapter_names)
        models = [Model(name=name, max_context_token_count=catalog.max_context_tokens) for name in names]
        for model in models[1:]:
            model.parent = catalog.model_name
        return ListModelsResponse(models=models)

    @contextmanager
    def _watch(self, context: Context) -> Iterator[RequestContext]:
        """Name the caller, and tell logs and metrics what becomes of its call."""
        metadata = _metadata(context)
        asked = RequestContext(route=f"{SERVICE_NAME}/Generate", status=grpc.StatusCode.CANCELLED.name)
        with self._access.log.watch(asked):
            try:
                asked.key_name = self._access.authenticate(metadata).name
                asked.request_id = accept_request_id(metadata.get(REQUEST_ID_HEADER, ""))
                asked.objectives = objectives_of(metadata)
                yield asked
                asked.status = grpc.StatusCode.OK.name
            except asyncio.CancelledError:
                seconds = context.time_remaining()
                if seconds is not None and seconds < _LATE_SECONDS:
                    asked.status = grpc.StatusCode.DEADLINE_EXCEEDED.name
                raise
            except BatonError as error:
                asked.status, asked.error_code = code_of(error).name, error.reason
                raise

    async def _stream(self, prompt: PreparedPrompt, asked: RequestContext, write: Write) -> GenerationResult:
        writer = GrpcWriter(write)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(writer.run())
                result = await self._generator.generate(prompt, asked, writer.take)
                writer.close()
        except* BatonError as group:
            raise group.exceptions[0] from None
        return result

    def _from_wire(
        self, request: GenerateRequest, asked: RequestContext, timeout_seconds: float | None
    ) -> GenerationRequest:
        input_name = _INPUT_FIELDS[request.WhichOneof("input") or "text"]
        return GenerationRequest(
            request_id=generation_name(asked.request_id),
            model=request.model or self._catalog.model_name,
            prompt=_prompt(request),
            sampling=request.sampling,
            stop=tuple(request.stop),
            cache_salt=request.cache_salt,
            priority=request.priority,
            timeout_seconds=timeout_seconds,
            field_names=_FIELD_NAMES | {"prompt": input_name, "messages": input_name, "tokens": input_name},
        )


def _metadata(context: Context) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}


def _prompt(request: GenerateRequest) -> Prompt:
    match request.WhichOneof("input"):
        case "text":
            return TextPrompt(request.text)
        case "tokens":
            return TokenPrompt(list(request.tokens.token_ids))
        case "conversation":
            if not 1 <= len(request.conversation.messages) <= MAX_MESSAGES:
                problem = f"expected 1 to {MAX_MESSAGES} messages, got {len(request.conversation.messages)}"
                raise InvalidFieldError("conversation.messages", problem)
            for index, message in enumerate(request.conversation.messages):
                if message.role not in _ROLES:
                    field = f"conversation.messages[{index}].role"
                    raise InvalidFieldError(field, f"expected one of {', '.join(_ROLES)}, got {message.role!r}")
            turns = ({"role": turn.role, "content": turn.content} for turn in request.conversation.messages)
            return ChatPrompt(tuple(turns))
        case _:
            raise InvalidFieldError("input", "expected text, conversation or tokens")


def _pieces(logprobs: Sequence[TokenLogprob]) -> Iterator[Sequence[TokenLogprob]]:
    for begin in range(0, len(logprobs), _MAX_ENTRIES):
        yield logprobs[begin : begin + _MAX_ENTRIES]


def _end(result: GenerationResult) -> GenerateResponse:
    usage = Usage(
        prompt_token_count=result.num_prompt_tokens,
        cached_token_count=result.num_cached_tokens,
        completion_token_count=result.num_completion_tokens,
        seed=result.seed,
    )
    end = GenerationEnd(
        reason=_REASONS[result.reason],
        usage=usage,
        placement=result.summary,
        degraded_max_token_count=result.degraded_max_tokens,
    )
    return GenerateResponse(finished=end)
