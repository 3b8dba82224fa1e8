"""POST /tokenize and /detokenize, in vLLM's shapes: the gateway's tokenizer as clients see it."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import invalid, missing
from baton.gateway.api.openai.messages import chat_messages, declared_tools
from baton.gateway.api.openai.schema import MESSAGE_UNSERVED, Message, ToolParam
from baton.gateway.api.tolerance import Unserved
from baton.gateway.api.usage import IgnoredBody, ignored_body
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import ChatPrompt, Prompt, TextPrompt


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    """Served name; null: the only one."""
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own; null: for `prompt`, not for `messages`, whose template has them."""
    add_generation_prompt: bool | None = None
    """Whether the beginning of an answer follows `messages`; null: yes."""
    return_token_strs: bool | None = None
    """Whether the tokens are also given as the vocabulary writes them."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    tools: list[ToolParam] | None = None
    """What the model is told that it may call; with `messages` only, as `chat_template_kwargs`."""


UNSERVED = Unserved(
    promises={
        **MESSAGE_UNSERVED.promises,
        "chat_template": (),
        "continue_final_message": (False,),
        "mm_processor_kwargs": ({},),
    },
    hints=MESSAGE_UNSERVED.hints,
)


class TokenizeAnswer(msgspec.Struct):
    """Answer of POST /tokenize."""

    count: int
    """Number of tokens."""
    max_model_len: int
    """Longest sequence of the model, prompt and output together."""
    tokens: list[int]
    token_strs: list[str | None] | None = None
    """If asked for."""
    baton: IgnoredBody | msgspec.UnsetType = msgspec.UNSET


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
    """Served name; null: the only one."""


class DetokenizeAnswer(msgspec.Struct):
    """Answer of POST /detokenize."""

    prompt: str
    """Text of the tokens, special tokens written as their names."""
    baton: IgnoredBody | msgspec.UnsetType = msgspec.UNSET


async def answer_tokenize(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer with the tokens of a text or a conversation; raise ApiError or BatonError if it cannot be tokenized."""
    body: TokenizeBody = exchange.body
    tokenization = await generator.preparation.tokenize(body.model or "", _prompt(body, exchange))
    exchange.context.num_prompt_tokens = len(tokenization.token_ids)
    answer = TokenizeAnswer(
        count=len(tokenization.token_ids),
        max_model_len=tokenization.model.max_context_tokens,
        tokens=list(tokenization.token_ids),
        token_strs=tokenization.pieces if body.return_token_strs else None,
        baton=ignored_body(exchange.context),
    )
    exchange.response.send(200, msgspec.json.encode(answer))


async def answer_detokenize(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer with the text of tokens; raise ApiError for a wrong parameter, BatonError if a token does not exist."""
    body: DetokenizeBody = exchange.body
    text = await generator.preparation.detokenize(body.model or "", body.tokens)
    exchange.response.send(200, msgspec.json.encode(DetokenizeAnswer(text, ignored_body(exchange.context))))


def _prompt(body: TokenizeBody, exchange: Exchange) -> Prompt:
    if body.messages is None:
        if body.prompt is None:
            raise missing("prompt")
        for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
            if getattr(body, name) not in (None, [], {}):
                raise invalid(name, "it needs `messages`")
        return TextPrompt(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise invalid("prompt", "`messages` is given too")
    return ChatPrompt(
        chat_messages(body.messages),
        add_generation_prompt=body.add_generation_prompt is not False,
        add_special_tokens=bool(body.add_special_tokens),
        tools=declared_tools(body.tools, exchange),
        template_variables=body.chat_template_kwargs or {},
    )
