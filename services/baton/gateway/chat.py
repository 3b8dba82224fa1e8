"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from functools import partial

from baton.gateway.answer import Job, answer_stream, answer_whole
from baton.gateway.call import Call
from baton.gateway.chat_format import ChatFormat
from baton.gateway.chat_reading import read_answer
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import refused
from baton.gateway.openai_messages import chat_messages
from baton.gateway.openai_sampling import chat_sampling, stop_strings
from baton.gateway.openai_schema import ChatBody, decode_body
from baton.gateway.openai_tools import chat_tools
from baton.gateway.output_form import output_form
from baton.gateway.request_id import generation_name
from baton.gateway.requests import ChatPrompt, GenerationRequest


async def answer_chat(generator: Generator, call: Call, response: HttpResponse) -> None:
    """Answer a chat completion.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    chat = decode_body(call.body, ChatBody)
    use, form = chat_tools(chat), output_form(chat)
    prompt = await generator.prepare(
        GenerationRequest(
            request_id=generation_name(call.request_id),
            model=chat.model,
            prompt=ChatPrompt(
                chat_messages(chat.messages), tools=use.offered, template_variables=_template_variables(generator, chat)
            ),
            sampling=chat_sampling(chat, form.constraint),
            form_field=form.field,
            stop=stop_strings(chat),
            cache_salt=chat.cache_salt or "",
            priority=chat.priority or 0,
            tool_use=use,
        )
    )
    has_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    answer_format = ChatFormat(
        f"chatcmpl-{call.request_id}",
        chat.model,
        int(time.time()),
        has_logprobs=bool(chat.logprobs),
        num_prompt_logprobs=chat.prompt_logprobs,
        has_usage=has_usage,
        token_bytes=generator.token_bytes,
        read=partial(read_answer, generator.preparation.reader, prompt, use),
    )
    job = Job(call, [prompt], chat.n or 1)
    if chat.stream:
        await answer_stream(response, generator, job, answer_format, has_usage=has_usage)
    else:
        await answer_whole(response, generator, job, answer_format)


def _template_variables(generator: Generator, chat: ChatBody) -> dict[str, object]:
    variables = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        if "reasoning_effort" not in generator.preparation.reader.template_names:
            text = "Unsupported parameter: `reasoning_effort`: the chat template of this model does not know it"
            raise refused("reasoning_effort", text, code="unsupported_parameter")
        variables["reasoning_effort"] = chat.reasoning_effort
    return variables
