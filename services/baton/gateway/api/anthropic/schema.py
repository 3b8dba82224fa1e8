"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Fields that Anthropic has and Baton does not serve are declared, to refuse them by name and to accept values that ask
for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec


class Block(msgspec.Struct, forbid_unknown_fields=True):
    """A block of content: text, thinking, a call of a tool, or its result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    """Of an answer that is sent back; whether the model sees it again is up to its template."""
    signature: str | None = None
    """Of thinking; not used."""
    id: str | None = None
    """Of a call."""
    name: str | None = None
    """Of a call: the tool."""
    input: dict[str, Any] | None = None
    """Of a call: its arguments."""
    tool_use_id: str | None = None
    """Of a result: the call that it answers."""
    content: Any = None
    """Of a result: a string or blocks of text."""
    is_error: bool | None = None
    """Of a result; the model reads of it in the text alone."""
    cache_control: Any = None
    """Accepted as {"type": "ephemeral"}, which asks for what is done anyway: prefixes are cached."""
    caller: Any = None
    """Of a call; accepted as {"type": "direct"}."""
    citations: Any = None
    """With answers that are sent back; must be empty."""
    source: Any = None
    title: Any = None
    context: Any = None
    data: Any = None


class MessageParam(msgspec.Struct, forbid_unknown_fields=True):
    """One turn."""

    role: str
    content: str | list[Block]


class ToolDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the client runs; Anthropic's own are not served."""

    name: str
    input_schema: dict[str, Any] | None = None
    """JSON schema of an object."""
    description: str | None = None
    type: str | None = None
    """custom, or null for the same."""
    strict: bool | None = None
    """Whether arguments must follow the schema also where the model is free not to call; null: no."""
    cache_control: Any = None
    """Accepted as that of blocks."""
    allowed_callers: Any = None
    defer_loading: Any = None
    eager_input_streaming: Any = None
    """Accepted; arguments are streamed as they come anyway."""
    input_examples: Any = None


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True):
    """Whether and what to call: auto, any, tool or none."""

    type: str
    name: str | None = None
    """Of `tool`: the one that must be called."""
    disable_parallel_tool_use: bool | None = None
    """Whether an answer has one call at most; null: no."""


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to think first."""

    type: str
    """adaptive: as the model does by itself; disabled: not at all, where its template knows `enable_thinking`."""
    budget_tokens: Any = None
    display: Any = None


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
    thinking: Thinking | None = None
    tool_choice: ToolChoice | None = None
    tools: list[ToolDefinition] | None = None


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
}
"""Fields that are not served, and values of them (beside null) that ask for nothing."""


class MessagesUsage(msgspec.Struct):
    """Anthropic's usage: the prompt's tokens are `input_tokens` and those read from a prefix cache."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class AnswerBlock(msgspec.Struct):
    """What an answer consists of."""


class TextBlock(AnswerBlock):
    """Text of an answer."""

    text: str
    type: str = "text"


class ThinkingBlock(AnswerBlock):
    """What the model wrote for itself."""

    thinking: str
    type: str = "thinking"
    signature: str = ""
    """Always empty: nothing is signed."""


class ToolUseBlock(AnswerBlock):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]
    """Arguments."""
    type: str = "tool_use"


OutputBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageAnswer(msgspec.Struct):
    """Anthropic's message object."""

    id: str
    model: str
    content: Sequence[AnswerBlock]
    usage: MessagesUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    type: str = "message"
    role: str = "assistant"


class CountAnswer(msgspec.Struct):
    """Answer of count_tokens."""

    input_tokens: int
