"""The body of POST /v1/responses, and the objects of its answer.

Fields that OpenAI has and Baton does not serve are declared, to refuse them by name and to accept values that ask for
nothing. Nothing is kept between requests, so that whatever refers to an earlier one is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.openai_usage import CachedTokens, PlacementBody


class ResponsesStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is sent."""

    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input message; only text is served."""

    type: str
    text: str | None = None
    annotations: Any = None
    """With answers that are sent back; must be empty, as `logprobs`."""
    logprobs: Any = None
    refusal: Any = None
    image_url: Any = None
    detail: Any = None
    file_id: Any = None
    file_data: Any = None
    filename: Any = None
    file_url: Any = None
    input_audio: Any = None


class InputItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the input, also one that was an answer."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    """Of an answer that is sent back; not used."""
    status: str | None = None
    """Of an answer that is sent back; not used."""
    phase: Any = None
    call_id: Any = None
    name: Any = None
    arguments: Any = None
    output: Any = None
    summary: Any = None
    encrypted_content: Any = None


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """POST /v1/responses."""

    model: str
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    """Accepted as `user` is."""
    metadata: dict[str, str] | None = None
    background: Any = None
    context_management: Any = None
    conversation: Any = None
    include: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    parallel_tool_calls: Any = None
    previous_response_id: Any = None
    prompt: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    service_tier: Any = None
    store: Any = None
    text: Any = None
    tool_choice: Any = None
    tools: Any = None
    top_logprobs: Any = None
    truncation: Any = None


NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "moderation": (),
    "parallel_tool_calls": (True, False),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_key": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": (),
    "reasoning": ({}, {"effort": None}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Fields that are not served, and values of them (beside null) that ask for nothing."""


class OutputText(msgspec.Struct):
    """Text of an answer."""

    text: str
    type: str = "output_text"
    annotations: list[None] = []
    logprobs: list[None] = []


class OutputMessage(msgspec.Struct):
    """The one item of an answer."""

    id: str
    status: str
    content: list[OutputText]
    type: str = "message"
    role: str = "assistant"


class ReasoningTokens(msgspec.Struct):
    """`output_tokens_details` of the usage."""

    reasoning_tokens: int = 0


class InputTokens(CachedTokens):
    """`input_tokens_details` of the usage."""

    cache_write_tokens: int = 0


class ResponsesUsage(msgspec.Struct):
    """Usage, in the words of this API."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """OpenAI's response object, with Baton's placement once it is known."""

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    error: None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessage] = []
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: dict[str, None] = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, dict[str, str]] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str = "auto"
    tools: list[None] = []
    top_p: float
    truncation: str = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}
    baton: PlacementBody | None = None
