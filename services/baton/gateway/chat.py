"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping

from baton.gateway.answer import Job, answer_stream, answer_whole
from baton.gateway.chat_format import ChatFormat
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import refused
from baton.gateway.openai_sampling import chat_sampling, stop_strings
from baton.gateway.openai_schema import MAX_MESSAGES, ChatBody, ContentPart, Message, decode_body
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that are served, as chat templates know them."""


async def answer_chat(generator: Generator, request_id: str, body: bytes, response: HttpResponse) -> None:
    """Answer a chat completion.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    chat = decode_body(body, ChatBody)
    prompt = await generator.prepare(
        GenerationRequest(
            request_id=generation_name(request_id),
            model=chat.model,
            prompt=ChatPrompt(_messages(chat)),
            sampling=chat_sampling(chat),
            stop=stop_strings(chat),
            cache_salt=chat.cache_salt or "",
        )
    )
    has_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    form = ChatFormat(
        f"chatcmpl-{request_id}",
        chat.model,
        int(time.time()),
        has_logprobs=bool(chat.logprobs),
        has_usage=has_usage,
        token_bytes=generator.token_bytes,
    )
    job = Job(request_id, [prompt], chat.n or 1)
    if chat.stream:
        await answer_stream(response, generator, job, form, has_usage=has_usage)
    else:
        await answer_whole(response, generator, job, form)


def _messages(chat: ChatBody) -> tuple[Mapping[str, str], ...]:
    if not chat.messages:
        raise refused("messages", "Invalid value for `messages`: expected at least one message", code="empty_array")
    if len(chat.messages) > MAX_MESSAGES:
        text = f"Invalid value for `messages`: expected at most {MAX_MESSAGES}, got {len(chat.messages)}"
        raise refused("messages", text, code="invalid_value")
    return tuple(_message(index, message) for index, message in enumerate(chat.messages))


def _message(index: int, message: Message) -> Mapping[str, str]:
    role = _ROLES.get(message.role)
    if role is None:
        param = f"messages[{index}].role"
        text = f"Invalid value for `{param}`: `{message.role}` is none of {', '.join(_ROLES)}"
        raise refused(param, text, code="invalid_value")
    if message.content is None:
        param = f"messages[{index}].content"
        raise refused(param, f"Invalid value for `{param}`: expected text", code="invalid_value")
    fields = {"role": role, "content": _text(index, message.content)}
    return fields if message.name is None else {**fields, "name": message.name}


def _text(index: int, content: str | list[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    for part_index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            param = f"messages[{index}].content[{part_index}].type"
            text = f"Unsupported parameter: `{param}`: only parts of type text are served, got `{part.type}`"
            raise refused(param, text, code="unsupported_parameter")
    return "".join(part.text or "" for part in content)
