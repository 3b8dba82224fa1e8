"""POST /v1/responses: OpenAI's newer API, without what it keeps between requests."""

from __future__ import annotations

import time

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.access.request_context import RequestContext, generation_name
from baton.gateway.api.answer import answer_single
from baton.gateway.api.errors import refused
from baton.gateway.api.openai.schema import decode_json, refuse_unserved_fields
from baton.gateway.api.responses.answer import ResponsesFormat
from baton.gateway.api.responses.input import conversation
from baton.gateway.api.responses.schema import NEUTRAL_VALUES, ResponseObject, ResponsesBody
from baton.gateway.api.responses.tools import response_tools
from baton.gateway.api.sampling import check_int32, token_limit
from baton.gateway.api.structured_output import text_constraint
from baton.gateway.api.structured_output_schema import TextParam
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.preparation import ContextLengthError
from baton.gateway.generation.requests import ChatPrompt, GenerationRequest, PreparedPrompt
from baton.gateway.generation.tools import NO_TOOLS
from baton.gateway.http.response import HttpResponse
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

_LOGPROBS = "message.output_text.logprobs"


async def answer_responses(generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
    """Answer an input.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    body = decode_json(call.body, ResponsesBody)
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "`stream_options` is only allowed when `stream` is true", code="invalid_value")
    prompt = await _prepare(generator, call, body)
    reader, use = generator.preparation.reader, prompt.request.tool_use or NO_TOOLS
    parser = reader.parser(use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel)
    token_bytes = generator.token_bytes if body.include else None
    form = ResponsesFormat(
        call, _opening(call, body), parser, reader.output_format.tool_format, token_bytes=token_bytes
    )
    await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))


async def _prepare(generator: TextGenerator, call: RequestContext, body: ResponsesBody) -> PreparedPrompt:
    use, form = response_tools(body), text_constraint(body.text)
    variables = _template_variables(generator, body)
    request = GenerationRequest(
        request_id=generation_name(call.request_id),
        model=body.model,
        prompt=ChatPrompt(conversation(body), tools=use.offered, template_variables=variables),
        sampling=_sampling(body, form.constraint),
        constraint_field=form.field,
        tool_use=use,
    )
    try:
        return await generator.prepare(request)
    except InvalidFieldError as error:
        if error.field != "messages":
            raise
        problem = error.message.removeprefix("messages: ")
        if isinstance(error, ContextLengthError):
            raise ContextLengthError("input", problem.replace("messages", "input")) from error
        raise InvalidFieldError("input", problem) from error


def _sampling(body: ResponsesBody, constraint: StructuredOutput | None) -> SamplingParameters:
    sampling = SamplingParameters(structured_output=constraint)
    if body.max_output_tokens is not None:
        sampling.max_token_count = token_limit("max_output_tokens", body.max_output_tokens)
    if body.temperature is not None:
        sampling.temperature = body.temperature
    if body.top_p is not None:
        sampling.top_p = body.top_p
    for index, kind in enumerate(body.include or ()):
        if kind != _LOGPROBS:
            name = f"include[{index}]"
            text = f"Unsupported parameter: `{name}`: only `{_LOGPROBS}` is served, got `{kind[:64]}`"
            raise refused(name, text, code="unsupported_parameter")
    if body.top_logprobs and not body.include:
        raise refused("top_logprobs", f"`top_logprobs` needs `include` to have `{_LOGPROBS}`", code="invalid_value")
    if body.include:
        sampling.top_logprob_count = check_int32("top_logprobs", body.top_logprobs or 0)
    return sampling


def _template_variables(generator: TextGenerator, body: ResponsesBody) -> dict[str, object]:
    reasoning = body.reasoning
    if reasoning is None:
        return {}
    for name in ("summary", "generate_summary", "context"):
        if getattr(reasoning, name) is not None:
            text = f"Unsupported parameter: `reasoning.{name}` is not served here"
            raise refused(f"reasoning.{name}", text, code="unsupported_parameter")
    if reasoning.effort is None:
        return {}
    if "reasoning_effort" not in generator.preparation.reader.template_names:
        text = "Unsupported parameter: `reasoning.effort`: the chat template of this model does not know it"
        raise refused("reasoning.effort", text, code="unsupported_parameter")
    return {"reasoning_effort": reasoning.effort}


def _opening(call: RequestContext, body: ResponsesBody) -> ResponseObject:
    return ResponseObject(
        id=f"resp_{call.request_id}",
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=body.model,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        user=body.user,
        metadata=body.metadata or {},
        tools=body.tools or [],
        tool_choice=body.tool_choice or "auto",
        parallel_tool_calls=body.parallel_tool_calls is not False,
        top_logprobs=body.top_logprobs or 0,
        text={"format": _format(body.text)},
        reasoning={"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
    )


def _format(text: TextParam | None) -> dict[str, object]:
    """Return the form of the output as the answer repeats it."""
    if text is None or text.format is None:
        return {"type": "text"}
    given = msgspec.structs.asdict(text.format)
    return {name: value for name, value in given.items() if value is not None}
