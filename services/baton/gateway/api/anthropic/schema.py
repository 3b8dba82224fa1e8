"""Bodies of POST /v1/messages and its count_tokens. Fields of Anthropic that are not served: see tolerance.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from baton.gateway.api.structured_output import OutputSchema
from baton.gateway.api.tolerance import PROMISES, ClosedBody, Unserved
from baton.gateway.api.usage import IgnoredBody, PlacementBody


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
    content: str | list[Block] | None = None
    """Of a result: a string or blocks of text."""
    is_error: bool | None = None
    """Of a result; the model reads of it in the text alone."""


class MessageParam(msgspec.Struct, forbid_unknown_fields=True):
    """One turn."""

    role: str
    content: str | list[Block]


class ToolDefinition(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the client runs; Anthropic's own are left out."""

    name: str = ""
    input_schema: dict[str, Any] | None = None
    """JSON schema of an object."""
    description: str | None = None
    type: str | None = None
    """custom, or null for the same."""
    strict: bool | None = None
    """Whether arguments must follow the schema also where the model is free not to call; null: no."""


class ToolChoice(ClosedBody):
    """Whether and what to call: auto, any, tool or none."""

    type: str
    name: str | None = None
    """Of `tool`: the one that must be called."""
    disable_parallel_tool_use: bool | None = None
    """Whether an answer has one call at most; null: no."""


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to think first."""

    type: str
    """adaptive: as the model does by itself; enabled, disabled: where its template knows `enable_thinking`."""


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    """What the output is to be like."""

    format: OutputSchema | None = None
    """Its form; null: any text."""
    effort: str | None = None
    """Handed to chat templates that know it as `reasoning_effort`."""


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    """About the request; accepted as OpenAI's `user` is."""

    user_id: str | None = None


class ConversationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take; the body of count_tokens."""

    model: str
    messages: list[MessageParam]
    system: str | list[Block] | None = None
    output_config: OutputConfig | None = None
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
    ignore_eos: bool | None = None
    """Whether the model's end tokens are ordinary tokens, as vLLM has it."""
    min_tokens: int | None = None
    """Tokens before which no end token can come, as vLLM has it."""
    top_k: int | None = None
    top_p: float | None = None


_CACHE_CONTROL: tuple[object, ...] = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"})
"""Marks of what may be cached: they ask for what is done anyway."""

_HINTS: dict[str, tuple[object, ...]] = {
    "cache_control": _CACHE_CONTROL,
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "mcp_servers": ([],),
    "messages[].content[].cache_control": _CACHE_CONTROL,
    "messages[].content[].caller": ({"type": "direct"},),
    "messages[].content[].citations": ([],),
    "messages[].content[].content[].cache_control": _CACHE_CONTROL,
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "system[].cache_control": _CACHE_CONTROL,
    "thinking.display": (),
    "tools[].allowed_callers": ([], ["direct"]),
    "tools[].cache_control": _CACHE_CONTROL,
    "tools[].defer_loading": (False,),
    "tools[].eager_input_streaming": (False, True),
    "tools[].input_examples": ([],),
}
UNSERVED = Unserved(
    promises={**PROMISES, "inference_geo": (), "output_format": ()},
    hints=_HINTS,
    reasons={"output_format": "expected it as `output_config.format`"},
)
COUNT_UNSERVED = Unserved(hints=_HINTS)
"""Of what only counts."""


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
    baton: PlacementBody | msgspec.UnsetType = msgspec.UNSET
    """A stream tells it in `message_delta`, and in `message_start` what was left out."""


class CountAnswer(msgspec.Struct):
    """Answer of count_tokens."""

    input_tokens: int
    baton: IgnoredBody | msgspec.UnsetType = msgspec.UNSET


class ModelObject(msgspec.Struct):
    """Anthropic's model object."""

    id: str
    display_name: str
    created_at: str
    """When the gateway started, as RFC 3339 has it."""
    max_input_tokens: int
    """Longest sequence, prompt and output together; 0 while no node has been seen."""
    max_tokens: int
    """The same: any part of it may be output."""
    type: str = "model"
    lifecycle: str = "active"


class ModelPage(msgspec.Struct):
    """Anthropic's list of models, all on one page."""

    data: list[ModelObject]
    first_id: str | None
    last_id: str | None
    has_more: bool = False
