"""The bodies of POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.openai_schema import Message, ToolParam


class TokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    """Served name; null: the one that is served."""
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its own; null: for `prompt`, not for `messages`, whose template has them."""
    add_generation_prompt: bool | None = None
    """Whether the beginning of an answer follows `messages`; null: yes."""
    return_token_strs: bool | None = None
    """Whether the tokens are also given as the vocabulary writes them."""
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    tools: list[ToolParam] | None = None
    """What the model is told that it may call; with `messages` only, as `chat_template_kwargs`."""
    mm_processor_kwargs: Any = None


NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "continue_final_message": (False,),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}
"""Fields of vLLM's that are not served, and values of them (beside null) that ask for nothing."""


class TokenizeAnswer(msgspec.Struct):
    """Answer of POST /tokenize."""

    count: int
    """Number of tokens."""
    max_model_len: int
    """Longest sequence of the model, prompt and output together."""
    tokens: list[int]
    token_strs: list[str | None] | None = None
    """If asked for."""


class DetokenizeBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
    """Served name; null: the one that is served."""


class DetokenizeAnswer(msgspec.Struct):
    """Answer of POST /detokenize."""

    prompt: str
    """Text of the tokens, special tokens written as their names."""
