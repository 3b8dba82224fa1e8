"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.access.request_context import RequestContext, generation_name
from baton.gateway.api.answer import answer_single
from baton.gateway.api.anthropic.answer import MessageFormat
from baton.gateway.api.anthropic.input import conversation
from baton.gateway.api.anthropic.schema import NEUTRAL_VALUES, ConversationBody, CountAnswer, MessagesBody
from baton.gateway.api.anthropic.tools import message_tools
from baton.gateway.api.errors import refused
from baton.gateway.api.openai.schema import decode_json, refuse_unserved_fields
from baton.gateway.api.sampling import check_int32, token_limit
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import ChatPrompt, GenerationRequest, PreparedPrompt
from baton.gateway.generation.tools import NO_TOOLS, ToolUse
from baton.gateway.http.response import HttpResponse
from baton.v1.generation_pb2 import SamplingParameters

REQUEST_ID_HEADER = "request-id"
"""Where Anthropic's clients look for the name of the request."""


async def answer_messages(generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
    """Answer a conversation.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    response.headers[REQUEST_ID_HEADER] = call.request_id
    body = decode_json(call.body, MessagesBody)
    prompt = await _prepare(generator, call, body)
    use = prompt.request.tool_use or NO_TOOLS
    parser = generator.preparation.reader.parser(
        use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel
    )
    form = MessageFormat(f"msg_{call.request_id}", body.model, len(prompt.token_ids), parser)
    await answer_single(response, generator, call, prompt, form, is_stream=bool(body.stream))


async def answer_count_tokens(generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
    """Answer with the number of a conversation's tokens.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be tokenized.
    """
    response.headers[REQUEST_ID_HEADER] = call.request_id
    body = decode_json(call.body, ConversationBody)
    tokenization = await generator.preparation.tokenize(body.model, _prompt(generator, body, message_tools(body)))
    call.num_prompt_tokens = len(tokenization.token_ids)
    response.send(200, msgspec.json.encode(CountAnswer(len(tokenization.token_ids))))


async def _prepare(generator: TextGenerator, call: RequestContext, body: MessagesBody) -> PreparedPrompt:
    use = message_tools(body)
    request = GenerationRequest(
        request_id=generation_name(call.request_id),
        model=body.model,
        prompt=_prompt(generator, body, use),
        sampling=_sampling(body),
        stop=tuple(body.stop_sequences or ()),
        tool_use=use,
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


def _prompt(generator: TextGenerator, body: ConversationBody, use: ToolUse) -> ChatPrompt:
    """Return the conversation as chat templates know it, the system's text first; an answer at its end is continued."""
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    is_begun = bool(body.messages) and body.messages[-1].role == "assistant"
    return ChatPrompt(
        conversation(body),
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        tools=use.offered,
        template_variables=_template_variables(generator, body),
    )


def _template_variables(generator: TextGenerator, body: ConversationBody) -> dict[str, object]:
    """Return what the template is told of thinking; a budget of tokens cannot be kept, and is refused."""
    thinking = body.thinking
    if thinking is None:
        return {}
    if thinking.type not in ("adaptive", "disabled"):
        text = f"Unsupported parameter: `thinking.type`: expected adaptive or disabled, got `{thinking.type[:64]}`"
        raise refused("thinking.type", text, code="unsupported_parameter")
    for name in ("budget_tokens", "display"):
        if getattr(thinking, name) is not None:
            text = f"Unsupported parameter: `thinking.{name}` is not served here"
            raise refused(f"thinking.{name}", text, code="unsupported_parameter")
    can_choose = "enable_thinking" in generator.preparation.reader.template_names
    return {"enable_thinking": False} if thinking.type == "disabled" and can_choose else {}
