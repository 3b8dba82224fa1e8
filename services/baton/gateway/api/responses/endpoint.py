"""POST /v1/responses: OpenAI's newer API, without what it keeps between requests."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial

import msgspec

from baton.gateway.access.admission import RequestContext, generation_name
from baton.gateway.api.answer import AnswerJob, send_answer
from baton.gateway.api.body import (
    FIELD_NAMES,
    check_int32,
    effort_variable,
    sampling_parameters,
    session_name,
    token_limit,
)
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import missing, refused, unsupported
from baton.gateway.api.responses.answer import ResponsesFormat
from baton.gateway.api.responses.input import conversation
from baton.gateway.api.responses.schema import FunctionTool, ResponseObject, ResponsesBody
from baton.gateway.api.structured_output import TextParam, text_constraint
from baton.gateway.generation.generator import TextGenerator, answer_parser
from baton.gateway.generation.requests import STRUCTURED_OUTPUT, ChatPrompt, GenerationRequest
from baton.gateway.generation.tools import NO_PARAMETERS, ToolFields, ToolUse, choose, choose_named, read_tools
from baton.text.tools import Tool
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

_FIELD_NAMES = FIELD_NAMES | {"messages": "input", "max_token_count": "max_output_tokens"}
_TOOL_FIELDS = ToolFields("name", "parameters", "strict")
_LOGPROBS = "message.output_text.logprobs"
_SEALED_REASONING = "reasoning.encrypted_content"


async def answer_responses(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer an input; raise ApiError naming the parameter that is not served, BatonError if generating fails."""
    body: ResponsesBody = exchange.body
    context = exchange.context
    known = await generator.template_names(body.model)
    prompt = await generator.prepare(_request(known, exchange, body), context)
    include = body.include or ()
    form = ResponsesFormat(
        context,
        _opening(context, body),
        answer_parser(prompt),
        prompt.text.model_format.output_format.tool_format,
        token_bytes=prompt.text.detokenizers.token_bytes if _LOGPROBS in include else None,
        is_sealing=_SEALED_REASONING in include,
    )
    await send_answer(exchange.response, generator, AnswerJob(context, [prompt]), form, is_stream=bool(body.stream))


def _request(known: Collection[str], exchange: Exchange, body: ResponsesBody) -> GenerationRequest:
    use, constraint = _tool_use(body, exchange), text_constraint(body.text)
    effort = body.reasoning.effort if body.reasoning else None
    variables = effort_variable(known, effort, "reasoning.effort", exchange)
    return GenerationRequest(
        request_id=generation_name(exchange.context.request_id),
        model=body.model,
        prompt=ChatPrompt(conversation(body, exchange), tools=use.offered, template_variables=variables),
        sampling=_sampling(body, constraint.constraint, exchange),
        field_names=_FIELD_NAMES | {STRUCTURED_OUTPUT: constraint.field},
        tool_use=use,
        session=session_name(body.prompt_cache_key),
    )


def _tool_use(body: ResponsesBody, exchange: Exchange) -> ToolUse:
    """Return a body's functions and their use; raise ApiError or InvalidFieldError naming the parameter that is bad."""
    tools = read_tools(body.tools, partial(_tool, exchange), _TOOL_FIELDS)
    use = ToolUse(tools, is_parallel=body.parallel_tool_calls is not False, fields=_TOOL_FIELDS)
    choice = body.tool_choice
    if isinstance(choice, str) or choice is None:
        return choose(use, choice or "auto")
    if choice.type != "function" or choice.name is None:
        raise unsupported("tool_choice.type", f"only functions can be chosen, got `{choice.type}`")
    return choose_named(use, choice.name, "tool_choice.name")


def _tool(exchange: Exchange, param: str, tool: FunctionTool) -> Tool | None:
    if tool.type != "function":
        exchange.ignore_tool(param, tool.type)
        return None
    if tool.name is None:
        raise missing(f"{param}.name")
    return Tool(tool.name, tool.parameters or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))


def _sampling(body: ResponsesBody, constraint: StructuredOutput | None, exchange: Exchange) -> SamplingParameters:
    sampling = sampling_parameters(body, constraint)
    if body.max_output_tokens is not None:
        sampling.max_token_count = token_limit("max_output_tokens", body.max_output_tokens)
    for index, kind in enumerate(body.include or ()):
        if kind not in (_LOGPROBS, _SEALED_REASONING):
            problem = f"only `{_LOGPROBS}` and `{_SEALED_REASONING}` are served, got `{kind[:64]}`"
            exchange.ignore(f"include[{kind}]", unsupported(f"include[{index}]", problem))
    has_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise refused("top_logprobs", f"`top_logprobs` needs `include` to have `{_LOGPROBS}`", code="invalid_value")
    if has_logprobs:
        sampling.top_logprob_count = check_int32("top_logprobs", body.top_logprobs or 0)
    return sampling


def _opening(context: RequestContext, body: ResponsesBody) -> ResponseObject:
    context.answer_id = f"resp_{context.request_id}"
    return ResponseObject(
        id=context.answer_id,
        created_at=int(time.time()),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        model=body.model,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        user=body.user,
        metadata=body.metadata or {},
        tools=[tool for tool in body.tools or () if tool.type == "function"],
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
