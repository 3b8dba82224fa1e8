"""The body of POST /v1/responses, and the objects of its answer.

Fields that OpenAI has and Baton does not serve are in a table of their own: see tolerance.py. Nothing is kept between
requests, so that whatever refers to an earlier one is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from baton.gateway.api.openai.logprobs import TokenLogprobBody
from baton.gateway.api.structured_output import TextParam
from baton.gateway.api.tolerance import PROMISES, ClosedBody, Unserved
from baton.gateway.api.usage import CachedTokens, PlacementBody


class ResponsesStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is sent."""

    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""


class InputPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of an input message; only text is served."""

    type: str
    text: str | None = None


class InputItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message of the input, also one that was an answer; a call, its result, or reasoning that was part of one."""

    type: str = "message"
    role: str | None = None
    content: str | list[InputPart] | None = None
    id: str | None = None
    """Of an answer that is sent back; not used."""
    status: str | None = None
    """Of an answer that is sent back; not used."""
    call_id: str | None = None
    """Of a call and its result."""
    name: str | None = None
    """Of a call: the function."""
    arguments: str | None = None
    """Of a call: a JSON object."""
    output: str | list[InputPart] | None = None
    """Of a call's result."""
    summary: list[InputPart] | None = None
    """Of reasoning; used where it has no content."""
    encrypted_content: str | None = None
    """Of reasoning, where it has neither: what an answer had there; that of other servers is left out."""


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool; all but functions are left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of an object; null: no parameters."""
    strict: bool | None = None
    """Whether arguments must follow the schema also where the model is free not to call; null: no."""


class FunctionChoice(ClosedBody):
    """The function that must be called."""

    type: str
    name: str | None = None


class ReasoningParam(msgspec.Struct, forbid_unknown_fields=True):
    """How to reason."""

    effort: str | None = None
    """Handed to chat templates that know it."""


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
    prompt_cache_key: str | None = None
    """Requests with the same go to the node that has the others' beginning, where nodes are about as good."""
    safety_identifier: str | None = None
    """Accepted as `user` is."""
    metadata: dict[str, str] | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | FunctionChoice | None = None
    """none, auto, required, or the function that must be called; null: auto."""
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; null: yes."""
    reasoning: ReasoningParam | None = None
    include: list[str] | None = None
    """`message.output_text.logprobs`, `reasoning.encrypted_content`; others are left out."""
    top_logprobs: int | None = None
    """Alternatives per token, 0 to 20; with `include`."""
    ignore_eos: bool | None = None
    """Whether the model's end tokens are ordinary tokens, as vLLM has it."""
    min_tokens: int | None = None
    """Tokens before which no end token can come, as vLLM has it."""
    text: TextParam | None = None
    """Form of the output."""


_NOTHING_KEPT = "nothing is kept between requests; send the whole conversation as `input`"
UNSERVED = Unserved(
    promises={**PROMISES, "background": (False,), "conversation": (), "moderation": (), "previous_response_id": ()},
    hints={
        "context_management": ([],),
        "input[].content[].annotations": ([],),
        "input[].content[].logprobs": ([],),
        "max_tool_calls": (),
        "prompt_cache_options": ({},),
        "prompt_cache_retention": (),
        "reasoning.summary": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "text.verbosity": (),
        "truncation": ("disabled",),
    },
    reasons={"conversation": _NOTHING_KEPT, "previous_response_id": _NOTHING_KEPT},
)
"""A `store` that is left out is told so twice: the answer has `store: false`. A `truncation` that would be needed ends
in the error of a context that is too long.
"""


class OutputText(msgspec.Struct):
    """Text of an answer."""

    text: str
    type: str = "output_text"
    annotations: list[None] = []
    logprobs: list[TokenLogprobBody] = []


class Item(msgspec.Struct):
    """What an answer consists of."""

    id: str
    status: str


class OutputMessage(Item):
    """Text of an answer, as an item of it."""

    content: list[OutputText]
    type: str = "message"
    role: str = "assistant"


class ReasoningText(msgspec.Struct):
    """What the model wrote for itself."""

    text: str
    type: str = "reasoning_text"


class ReasoningItem(Item):
    """Reasoning, as an item of an answer."""

    content: list[ReasoningText]
    type: str = "reasoning"
    summary: list[None] = []
    encrypted_content: str | msgspec.UnsetType = msgspec.UNSET
    """The same, for clients that send nothing else back; if asked for."""


class FunctionCall(Item):
    """A call, as an item of an answer."""

    call_id: str
    name: str
    arguments: str
    type: str = "function_call"


OutputItem: TypeAlias = OutputMessage | ReasoningItem | FunctionCall


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
    output: Sequence[Item] = ()
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: dict[str, str | None] = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    service_tier: str = "default"
    store: bool = False
    temperature: float
    text: dict[str, dict[str, Any]] = msgspec.field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str | FunctionChoice = "auto"
    tools: list[FunctionTool] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponsesUsage | None = None
    user: str | None = None
    metadata: dict[str, str] = {}
    baton: PlacementBody | None = None
