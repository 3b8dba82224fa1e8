"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Fields that Anthropic has and Baton does not serve are declared, to refuse them by name and to accept values that ask
for nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Block(msgspec.Struct, forbid_unknown_fields=True):
    """A block of content; only text is served."""

    type: str
    text: str | None = None
    cache_control: Any = None
    """Accepted as {"type": "ephemeral"}, which asks for what is done anyway: prefixes are cached."""
    citations: Any = None
    """With answers that are sent back; must be empty."""
    source: Any = None
    title: Any = None
    context: Any = None
    id: Any = None
    name: Any = None
    input: Any = None
    tool_use_id: Any = None
    content: Any = None
    is_error: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None


class MessageParam(msgspec.Struct, forbid_unknown_fields=True):
    """One turn."""

    role: str
    content: str | list[Block]


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """About the request; accepted as OpenAI's `user` is."""

    user_id: str | None = None


class ConversationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take; the body of count_tokens."""

    model: str
    messages: list[MessageParam]
    system: str | list[Block] | None = None
    cache_control: Any = None
    mcp_servers: Any = None
    output_config: Any = None
    speed: Any = None
    thinking: Any = None
    tool_choice: Any = None
    tools: Any = None


class MessagesBody(ConversationBody, kw_only=True):
    """POST /v1/messages."""

    max_tokens: int
    metadata: Metadata | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    service_tier: Any = None


CACHE_CONTROL: tuple[object, ...] = ({"type": "ephemeral"},)
"""Marks of what may be cached that change nothing here."""

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "cache_control": CACHE_CONTROL,
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_config": ({},),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
    "tool_choice": ({"type": "auto"}, {"type": "none"}),
    "tools": ([],),
}
"""Fields that are not served, and values of them (beside null) that ask for nothing."""


class MessagesUsage(msgspec.Struct):
    """Anthropic's usage: the prompt's tokens are `input_tokens` and those read from a prefix cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class TextBlock(msgspec.Struct):
    """Content of an answer."""

    text: str
    type: str = "text"


class MessageAnswer(msgspec.Struct):
    """Anthropic's message object."""

    id: str
    model: str
    content: list[TextBlock]
    usage: MessagesUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class CountAnswer(msgspec.Struct):
    """Answer of count_tokens."""

    input_tokens: int
