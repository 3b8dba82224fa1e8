"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.anthropic_format import MessageFormat
from baton.gateway.anthropic_schema import (
    CACHE_CONTROL,
    NEUTRAL_VALUES,
    Block,
    ConversationBody,
    CountAnswer,
    MessagesBody,
)
from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import ApiError, refused
from baton.gateway.openai_sampling import check_int32, token_limit
from baton.gateway.openai_schema import MAX_MESSAGES, decode_json, refuse_unserved_fields
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest, PreparedPrompt
from baton.gateway.single_answer import answer_single
from baton.v1.generation_pb2 import SamplingParameters

REQUEST_ID_HEADER = "request-id"
"""Where Anthropic's clients look for the name of the request."""

_ROLES = ("user", "assistant", "system")


async def answer_messages(generator: Generator, call: Call, response: HttpResponse) -> None:
    """Answer a conversation.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    response.headers[REQUEST_ID_HEADER] = call.request_id
    body = decode_json(call.body, MessagesBody)
    prompt = await _prepare(generator, call, body)
    form = MessageFormat(f"msg_{call.request_id}", body.model, len(prompt.token_ids))
    await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))


async def answer_count_tokens(generator: Generator, call: Call, response: HttpResponse) -> None:
    """Answer with the number of a conversation's tokens.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be tokenized.
    """
    response.headers[REQUEST_ID_HEADER] = call.request_id
    body = decode_json(call.body, ConversationBody)
    tokenization = await generator.preparation.tokenize(body.model, _prompt(body))
    call.num_prompt_tokens = len(tokenization.token_ids)
    response.send(200, msgspec.json.encode(CountAnswer(len(tokenization.token_ids))))


async def _prepare(generator: Generator, call: Call, body: MessagesBody) -> PreparedPrompt:
    request = GenerationRequest(
        request_id=generation_name(call.request_id),
        model=body.model,
        prompt=_prompt(body),
        sampling=_sampling(body),
        stop=tuple(body.stop_sequences or ()),
    )
    try:
        return await generator.prepare(request)
    except InvalidFieldError as error:
        if error.field != "stop":
            raise
        raise InvalidFieldError("stop_sequences", error.message.removeprefix("stop: ")) from error


def _sampling(body: MessagesBody) -> SamplingParameters:
    sampling = SamplingParameters(max_token_count=token_limit("max_tokens", body.max_tokens))
    if body.top_k is not None:
        sampling.top_k = check_int32("top_k", body.top_k)
    if body.temperature is not None:
        sampling.temperature = body.temperature
    if body.top_p is not None:
        sampling.top_p = body.top_p
    return sampling


def _prompt(body: ConversationBody) -> ChatPrompt:
    """Return the conversation as chat templates know it, the system's text first; an answer at its end is continued."""
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    if not 1 <= len(body.messages) <= MAX_MESSAGES:
        text = f"Invalid value for `messages`: expected 1 to {MAX_MESSAGES}, got {len(body.messages)}"
        raise refused("messages", text, code="invalid_value")
    turns = [] if not body.system else [{"role": "system", "content": _text("system", body.system)}]
    for index, message in enumerate(body.messages):
        if message.role not in _ROLES:
            raise _wrong(f"messages[{index}].role", f"`{message.role}` is none of {', '.join(_ROLES)}")
        turns.append({"role": message.role, "content": _text(f"messages[{index}].content", message.content)})
    is_begun = body.messages[-1].role == "assistant"
    return ChatPrompt(tuple(turns), add_generation_prompt=not is_begun, continue_final_message=is_begun)


def _text(name: str, content: str | Sequence[Block]) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        _check_block(f"{name}[{index}]", block)
    return "".join(block.text or "" for block in content)


def _check_block(name: str, block: Block) -> None:
    if block.type != "text":
        text = f"Unsupported parameter: `{name}.type`: only blocks of type text are served, got `{block.type}`"
        raise refused(f"{name}.type", text, code="unsupported_parameter")
    if block.text is None:
        raise _wrong(f"{name}.text", "expected text")
    for field in block.__struct_fields__:
        value = getattr(block, field)
        is_neutral = (
            field in ("type", "text") or value in (None, []) or (field == "cache_control" and value in CACHE_CONTROL)
        )
        if not is_neutral:
            text = f"Unsupported parameter: `{name}.{field}` is not served here"
            raise refused(f"{name}.{field}", text, code="unsupported_parameter")


def _wrong(param: str, problem: str) -> ApiError:
    return refused(param, f"Invalid value for `{param}`: {problem}", code="invalid_value")
