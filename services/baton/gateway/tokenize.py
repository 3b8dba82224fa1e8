"""POST /tokenize and /detokenize: the gateway's tokenizer as clients see it."""

from __future__ import annotations

import msgspec

from baton.gateway.call import Call
from baton.gateway.generation import Generator
from baton.gateway.http_response import HttpResponse
from baton.gateway.openai_errors import refused
from baton.gateway.openai_messages import chat_messages
from baton.gateway.openai_schema import decode_json, refuse_message_extras, refuse_unserved_fields
from baton.gateway.openai_tools import declared_tools
from baton.gateway.requests import ChatPrompt, Prompt, TextPrompt
from baton.gateway.tokenize_schema import (
    NEUTRAL_VALUES,
    DetokenizeAnswer,
    DetokenizeBody,
    TokenizeAnswer,
    TokenizeBody,
)


async def answer_tokenize(generator: Generator, call: Call, response: HttpResponse) -> None:
    """Answer with the tokens of a text or a conversation.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If the prompt cannot be tokenized.
    """
    body = decode_json(call.body, TokenizeBody)
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    tokenization = await generator.preparation.tokenize(body.model or "", _prompt(body))
    call.num_prompt_tokens = len(tokenization.token_ids)
    answer = TokenizeAnswer(
        count=len(tokenization.token_ids),
        max_model_len=tokenization.max_context_tokens,
        tokens=list(tokenization.token_ids),
        token_strs=generator.preparation.pieces(tokenization.token_ids) if body.return_token_strs else None,
    )
    response.send(200, msgspec.json.encode(answer))


async def answer_detokenize(generator: Generator, call: Call, response: HttpResponse) -> None:
    """Answer with the text of tokens.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If a token does not exist.
    """
    body = decode_json(call.body, DetokenizeBody)
    text = await generator.preparation.detokenize(body.model or "", body.tokens)
    response.send(200, msgspec.json.encode(DetokenizeAnswer(text)))


def _prompt(body: TokenizeBody) -> Prompt:
    if body.messages is None:
        if body.prompt is None:
            raise refused("prompt", "Missing required parameter: `prompt`", code="missing_required_parameter")
        for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
            if getattr(body, name) not in (None, [], {}):
                raise refused(name, f"Invalid value for `{name}`: it needs `messages`", code="invalid_value")
        return TextPrompt(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise refused("prompt", "Invalid value for `prompt`: `messages` is given too", code="invalid_value")
    refuse_message_extras(body.messages)
    return ChatPrompt(
        chat_messages(body.messages),
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        tools=declared_tools(body.tools),
        template_variables=body.chat_template_kwargs or {},
    )
