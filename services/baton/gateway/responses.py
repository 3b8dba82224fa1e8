"""POST /v1/responses: OpenAI's newer API, without what it keeps between requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from baton.errors import InvalidFieldError
from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import ApiError, refused
from baton.gateway.openai_messages import ROLES
from baton.gateway.openai_sampling import token_limit
from baton.gateway.openai_schema import MAX_MESSAGES, decode_json, refuse_unserved_fields
from baton.gateway.preparation import ContextLengthError
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest, PreparedPrompt
from baton.gateway.responses_format import ResponsesFormat
from baton.gateway.responses_schema import NEUTRAL_VALUES, InputItem, InputPart, ResponseObject, ResponsesBody
from baton.gateway.single_answer import answer_single
from baton.v1.generation_pb2 import SamplingParameters

_TEXT_PARTS = ("input_text", "output_text")


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
    form = ResponsesFormat(call, _opening(call, body))
    await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))


async def _prepare(generator: Generator, call: Call, body: ResponsesBody) -> PreparedPrompt:
    request = GenerationRequest(
        request_id=generation_name(call.request_id),
        model=body.model,
        prompt=ChatPrompt(_conversation(body)),
        sampling=_sampling(body),
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


def _sampling(body: ResponsesBody) -> SamplingParameters:
    sampling = SamplingParameters()
    if body.max_output_tokens is not None:
        sampling.max_token_count = token_limit("max_output_tokens", body.max_output_tokens)
    if body.temperature is not None:
        sampling.temperature = body.temperature
    if body.top_p is not None:
        sampling.top_p = body.top_p
    return sampling


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
    )


def _conversation(body: ResponsesBody) -> tuple[Mapping[str, str], ...]:
    """Return the conversation as chat templates know it, the instructions first."""
    turns = [] if not body.instructions else [{"role": "system", "content": body.instructions}]
    if isinstance(body.input, str):
        return (*turns, {"role": "user", "content": body.input})
    if not 1 <= len(body.input) <= MAX_MESSAGES:
        raise _wrong("input", f"expected 1 to {MAX_MESSAGES} messages, got {len(body.input)}")
    return (*turns, *(_turn(f"input[{index}]", item) for index, item in enumerate(body.input)))


def _turn(name: str, item: InputItem) -> Mapping[str, str]:
    if item.type != "message":
        text = f"Unsupported parameter: `{name}.type`: only items of type message are served, got `{item.type}`"
        raise refused(f"{name}.type", text, code="unsupported_parameter")
    for field in ("phase", "call_id", "name", "arguments", "output", "summary", "encrypted_content"):
        if getattr(item, field) is not None:
            raise _unsupported(f"{name}.{field}")
    role = ROLES.get(item.role or "")
    if role is None:
        raise _wrong(f"{name}.role", f"`{item.role}` is none of {', '.join(ROLES)}")
    if item.content is None:
        raise _wrong(f"{name}.content", "expected text")
    return {"role": role, "content": _text(f"{name}.content", item.content)}


def _text(name: str, content: str | Sequence[InputPart]) -> str:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        part_name = f"{name}[{index}]"
        if part.type not in _TEXT_PARTS or part.text is None:
            text = f"Unsupported parameter: `{part_name}.type`: only parts with text are served, got `{part.type}`"
            raise refused(f"{part_name}.type", text, code="unsupported_parameter")
        for field in part.__struct_fields__:
            if field not in ("type", "text") and getattr(part, field) not in (None, []):
                raise _unsupported(f"{part_name}.{field}")
    return "".join(part.text or "" for part in content)


def _unsupported(param: str) -> ApiError:
    return refused(param, f"Unsupported parameter: `{param}` is not served here", code="unsupported_parameter")


def _wrong(param: str, problem: str) -> ApiError:
    return refused(param, f"Invalid value for `{param}`: {problem}", code="invalid_value")
