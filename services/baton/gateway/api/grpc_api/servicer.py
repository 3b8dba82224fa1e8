"""baton.v1.GenerationService: who asks, for how long, and which part of the core answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import grpc
from opentelemetry import trace

from baton.errors import AuthenticationError, BatonError, InvalidFieldError, UnavailableError
from baton.gateway.access.admission import (
    REQUEST_ID_HEADER,
    AccessControl,
    RequestContext,
    accept_request_id,
    objectives_of,
)
from baton.gateway.access.api_keys import ApiKey
from baton.gateway.api.answer import AnswerJob, describe_answer, generate_choice, run_all
from baton.gateway.api.grpc_api.answer import GrpcWriter, Write
from baton.gateway.api.grpc_api.input import generation_request, in_words_of, prompt_of
from baton.gateway.cluster.router_client import NO_NODE
from baton.gateway.generation.generator import TextGenerator, answer_reader
from baton.gateway.generation.observation import note_request, operation_span
from baton.gateway.generation.preparation import Tokenization
from baton.gateway.http.messages import HeldBytes
from baton.gateway.models.catalog import ListedModel, ModelCatalog
from baton.rpc.compression import compress_where_it_pays, writer_of
from baton.rpc.error_interceptor import Context, Handler, HandlerInterceptor, strings_of
from baton.rpc.status import abort, code_of
from baton.telemetry import names
from baton.telemetry.tracing import SERVER_FAILURES, is_tracing, named_address, server_attributes
from baton.v1 import generation_service_pb2 as wire
from baton.v1.generation_service_pb2_grpc import GenerationServiceServicer

SERVICE_NAME = "baton.v1.GenerationService"

Work: TypeAlias = wire.GenerateRequest | wire.TokenizeRequest | wire.DetokenizeRequest | wire.CountTokensRequest
"""Requests that cost work."""

_OPERATIONS = {
    "Generate": names.OPERATION_TEXT_COMPLETION,
    "Tokenize": names.OPERATION_TOKENIZE,
    "CountTokens": names.OPERATION_TOKENIZE,
    "Detokenize": names.OPERATION_DETOKENIZE,
}
"""By method; a generation after a conversation is a chat."""
_MAX_BYTES = (4 << 20) - 1024
"""Of one message: what clients take without being told."""
_LATE_SECONDS = 0.05
"""Clients cancel a call whose deadline comes as it comes, or a moment before."""


class GenerationServicer(GenerationServiceServicer):
    """Serves baton.v1.GenerationService, behind a `KeyInterceptor`, which knows who asks."""

    def __init__(
        self, generator: TextGenerator, catalog: ModelCatalog, access: AccessControl, held: HeldBytes, address: str = ""
    ) -> None:
        """Make it; `address` is host:port where it is served, for traces."""
        self._address = server_attributes(named_address(address))
        self._generator, self._catalog = generator, catalog
        self._access, self._held = access, held

    async def Generate(self, request: wire.GenerateRequest, context: Context) -> None:  # noqa: N802
        """Generate and stream."""
        async with self._working("Generate", request, context) as asked:
            await self._generate(request, asked, writer_of(context), context.time_remaining())

    async def Tokenize(self, request: wire.TokenizeRequest, context: Context) -> wire.TokenizeResponse:  # noqa: N802
        """Answer with the tokens of a text or a conversation."""
        async with self._working("Tokenize", request, context) as asked:
            found = await self._tokenize(request, asked)
            max_context_tokens = found.model.max_context_tokens
            response = wire.TokenizeResponse(token_ids=found.token_ids, max_context_token_count=max_context_tokens)
            if request.include_pieces:
                response.pieces.extend(piece or "" for piece in found.pieces)
            _check_size(response, request.WhichOneof("input") or "input", "CountTokens counts its tokens")
            compress_where_it_pays(response, context)
            return response

    async def Detokenize(self, request: wire.DetokenizeRequest, context: Context) -> wire.DetokenizeResponse:  # noqa: N802
        """Answer with the text of tokens."""
        async with self._working("Detokenize", request, context):
            try:
                text = await self._generator.preparation.detokenize(request.model, request.token_ids)
            except InvalidFieldError as error:
                raise error.renamed("token_ids") from error
            response = wire.DetokenizeResponse(text=text)
            _check_size(response, "token_ids", "ask for fewer at a time")
            compress_where_it_pays(response, context)
            return response

    async def CountTokens(self, request: wire.CountTokensRequest, context: Context) -> wire.CountTokensResponse:  # noqa: N802
        """Answer with the number of tokens of a text or a conversation."""
        async with self._working("CountTokens", request, context) as asked:
            found = await self._tokenize(request, asked)
            return wire.CountTokensResponse(
                token_count=len(found.token_ids), max_context_token_count=found.model.max_context_tokens
            )

    async def ListModels(self, _request: wire.ListModelsRequest, _context: Context) -> wire.ListModelsResponse:  # noqa: N802
        """List the models."""
        catalog = self._catalog
        if not any(row.max_context_tokens for row in catalog.listed()):
            await catalog.refresh()
        rows = catalog.listed()
        if not any(row.max_context_tokens for row in rows) and catalog.problem:
            raise UnavailableError(catalog.told_problem, reason=NO_NODE)
        return wire.ListModelsResponse(models=[_model(row) for row in rows])

    async def _generate(
        self, request: wire.GenerateRequest, asked: RequestContext, write: Write, timeout_seconds: float | None
    ) -> None:
        generator, model = self._generator, await self._catalog.model(request.model)
        known = model.text.model_format.template_names
        wanted = generation_request(request, asked, known, timeout_seconds=timeout_seconds)
        prompt = await generator.prepare(replace(wanted, model=wanted.model or model.name), asked)
        job = AnswerJob(asked, [prompt], max(1, request.choice_count))
        try:
            job.begin()
        except InvalidFieldError as error:
            raise error.renamed("choice_count") from error
        describe_answer(job, is_stream=True)
        writer = GrpcWriter(write, prompt.text.detokenizers.token_bytes, partial(answer_reader, prompt))

        async def answer(choice: int) -> None:
            result = await generate_choice(generator, job, choice, partial(writer.take, choice))
            await writer.finish(choice, result, asked)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(writer.run())
                await run_all(job.num_generations, answer)
                writer.close()
        except* BatonError as group:
            raise group.exceptions[0] from None

    async def _tokenize(
        self, request: wire.TokenizeRequest | wire.CountTokensRequest, asked: RequestContext
    ) -> Tokenization:
        preparation = self._generator.preparation
        prompt = prompt_of(request, asked, await self._generator.template_names(request.model))
        with in_words_of(request):
            tokenization = await preparation.tokenize(request.model, prompt)
        asked.num_prompt_tokens = len(tokenization.token_ids)
        return tokenization

    @asynccontextmanager
    async def _working(self, rpc: str, request: Work, context: Context) -> AsyncIterator[RequestContext]:
        """Do what costs work: known by name, admitted, and limited in time."""
        with self._watch(rpc, context) as asked, self._traced(rpc, request, asked):
            await context.send_initial_metadata(((REQUEST_ID_HEADER, asked.request_id),))
            num_bytes, asked.model = request.ByteSize(), request.model
            has_objectives = any(asked.objectives)
            with (
                self._access.admission.slot(asked),
                self._held.holding(num_bytes),
                self._access.refusals.watch(
                    asked.key_name, num_bytes, model=asked.model, has_objectives=has_objectives
                ),
            ):
                try:
                    async with self._access.limit(asked.key):
                        yield asked
                except TimeoutError:
                    asked.status = grpc.StatusCode.DEADLINE_EXCEEDED.name
                    await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request took too long")

    @contextmanager
    def _watch(self, rpc: str, context: Context) -> Iterator[RequestContext]:
        """Name the caller, and tell logs and metrics what becomes of its call."""
        metadata = strings_of(context.invocation_metadata())
        asked = RequestContext(route=f"{SERVICE_NAME}/{rpc}", status=grpc.StatusCode.CANCELLED.name)
        with self._access.log.watch(asked):
            try:
                asked.key = SHOWN_KEY.get()
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

    @contextmanager
    def _traced(self, rpc: str, request: Work, asked: RequestContext) -> Iterator[None]:
        """Make the span of the operation, and tell that of the call, which is current, what it is of."""
        if not is_tracing():
            yield
            return
        is_chat = isinstance(request, wire.GenerateRequest) and request.HasField("conversation")
        operation = names.OPERATION_CHAT if is_chat else _OPERATIONS[rpc]
        server, failure = trace.get_current_span(), ""
        server.set_attribute(names.GEN_AI_OPERATION_NAME, operation)
        with operation_span(operation, self._address) as span:
            try:
                yield
            except BatonError as error:
                asked.error_code = error.reason
                failure = error.reason if code_of(error) in SERVER_FAILURES else ""
                raise
            except Exception as error:
                failure = asked.status if isinstance(error, grpc.aio.AbortError) else type(error).__name__
                raise
            finally:
                note_request(server, asked, "")
                note_request(span, asked, failure)


def _model(row: ListedModel) -> wire.Model:
    status = row.status
    return wire.Model(
        name=row.name,
        max_context_token_count=row.max_context_tokens,
        parent=row.root if row.is_adapter else "",
        state=f"MODEL_STATE_{status.stage.upper()}",
        progress=status.progress,
        alias_of=row.alias_of,
    )


def _check_size(response: wire.TokenizeResponse | wire.DetokenizeResponse, field: str, advice: str) -> None:
    if response.ByteSize() > _MAX_BYTES:
        raise InvalidFieldError(field, f"the answer is larger than the {_MAX_BYTES} bytes that clients take; {advice}")


SHOWN_KEY: ContextVar[ApiKey] = ContextVar("baton_shown_key")
"""The key that the call which is being served has shown, as `KeyInterceptor` found it."""


class KeyInterceptor(HandlerInterceptor):
    """Refuses calls of Baton's services that show no key, while their messages are still on their way.

    Health and reflection, by which clients learn that there is something to ask, need none.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler, or one that refuses the call."""
        if call.method.startswith("/baton."):  # and is one: others would become labels of metrics
            try:
                SHOWN_KEY.set(self._access.authenticate(strings_of(call.invocation_metadata)))
            except AuthenticationError as error:
                return self._refusal(call.method.removeprefix("/"), error)
        return handler

    def _refusal(self, route: str, error: AuthenticationError) -> Handler:
        async def refuse(_requests: object, context: Context) -> None:
            asked = RequestContext(route=route, status=code_of(error).name, error_code=error.reason)
            with self._access.log.watch(asked):
                await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)
