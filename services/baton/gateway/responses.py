"""POST /v1/responses: OpenAI's newer API, without what it keeps between requests."""

from __future__ import annotations

import time

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.call import Call
from baton.gateway.form_schema import TextParam
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import refused
from baton.gateway.openai_sampling import check_int32, token_limit
from baton.gateway.openai_schema import decode_json, refuse_unserved_fields
from baton.gateway.output_form import text_form
from baton.gateway.preparation import ContextLengthError
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest, PreparedPrompt
from baton.gateway.responses_format import ResponsesFormat
from baton.gateway.responses_input import conversation
from baton.gateway.responses_schema import NEUTRAL_VALUES, ResponseObject, ResponsesBody
from baton.gateway.responses_tools import response_tools
from baton.gateway.single_answer import answer_single
from baton.gateway.tool_use import NO_TOOLS
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

_LOGPROBS = "message.output_text.logprobs"


async def answer_responses(generator: Generator, call: Call, response: HttpResponse) -> None:
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
    form = ResponsesFormat(call, _opening(call, body), parser, reader.dialect.tool_format, token_bytes=token_bytes)
    await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))


async def _prepare(generator: Generator, call: Call, body: ResponsesBody) -> PreparedPrompt:
    use, form = response_tools(body), text_form(body.text)
    variables = _template_variables(generator, body)
    request = GenerationRequest(
        request_id=generation_name(call.request_id),
        model=body.model,
        prompt=ChatPrompt(conversation(body), tools=use.offered, template_variables=variables),
        sampling=_sampling(body, form.constraint),
        form_field=form.field,
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


def _template_variables(generator: Generator, body: ResponsesBody) -> dict[str, object]:
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


def _opening(call: Call, body: ResponsesBody) -> ResponseObject:
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
