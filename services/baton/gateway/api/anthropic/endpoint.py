"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

import msgspec

from baton.gateway.access.admission import generation_name
from baton.gateway.api.answer import AnswerJob, send_answer
from baton.gateway.api.anthropic.answer import MessageFormat
from baton.gateway.api.anthropic.input import conversation
from baton.gateway.api.anthropic.schema import ConversationBody, CountAnswer, MessagesBody
from baton.gateway.api.anthropic.tools import message_tools
from baton.gateway.api.body import FIELD_NAMES, sampling_parameters, token_limit
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import unsupported
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import ChatPrompt, GenerationRequest
from baton.gateway.generation.tools import ToolUse
from baton.v1.generation_pb2 import SamplingParameters

_FIELD_NAMES = FIELD_NAMES | {"stop": "stop_sequences"}


async def answer_messages(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer a conversation.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    body: MessagesBody = exchange.body
    context, use = exchange.context, message_tools(body)
    request = GenerationRequest(
        request_id=generation_name(context.request_id),
        model=body.model,
        prompt=_prompt(generator, body, use),
        sampling=_sampling(body),
        stop=tuple(body.stop_sequences or ()),
        field_names=_FIELD_NAMES,
        tool_use=use,
    )
    prompt = await generator.prepare(request)
    parser = generator.preparation.model_format.parser(
        use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel
    )
    form = MessageFormat(f"msg_{context.request_id}", body.model, len(prompt.token_ids), parser)
    await send_answer(exchange.response, generator, AnswerJob(context, [prompt]), form, is_stream=bool(body.stream))


async def answer_count_tokens(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer with the number of a conversation's tokens.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be tokenized.
    """
    body: ConversationBody = exchange.body
    tokenization = await generator.preparation.tokenize(body.model, _prompt(generator, body, message_tools(body)))
    exchange.context.num_prompt_tokens = len(tokenization.token_ids)
    exchange.response.send(200, msgspec.json.encode(CountAnswer(len(tokenization.token_ids))))


def _sampling(body: MessagesBody) -> SamplingParameters:
    sampling = sampling_parameters(body)
    sampling.max_token_count = token_limit("max_tokens", body.max_tokens)
    return sampling


def _prompt(generator: TextGenerator, body: ConversationBody, use: ToolUse) -> ChatPrompt:
    """Return the conversation as chat templates know it, the system's text first; an answer at its end is continued."""
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
        raise unsupported("thinking.type", f"expected adaptive or disabled, got `{thinking.type[:64]}`")
    for name in ("budget_tokens", "display"):
        if getattr(thinking, name) is not None:
            raise unsupported(f"thinking.{name}")
    can_choose = "enable_thinking" in generator.preparation.model_format.template_names
    return {"enable_thinking": False} if thinking.type == "disabled" and can_choose else {}
