"""The bodies that the REST API takes. Fields of OpenAI that Baton does not serve: see tolerance.py."""

from __future__ import annotations

from typing import Any

import msgspec

from baton.gateway.api.openai.logprobs import ChatLogprobs, CompletionLogprobs, PromptPosition
from baton.gateway.api.structured_output import StructuredOutputFields
from baton.gateway.api.tolerance import PROMISES, ClosedBody, Unserved
from baton.gateway.api.usage import PlacementBody, UsageBody


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is sent."""

    include_usage: bool | None = None
    """Whether a last chunk reports the usage."""
    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""


class CompletionStreamOptions(StreamOptions, forbid_unknown_fields=True):
    """How a stream of completions is sent."""

    continuous_usage_stats: bool | None = None
    """With `include_usage`: whether every chunk reports the usage of its choice so far, as vLLM has it."""


class CommonBody(StructuredOutputFields, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take; bounds are those of generation.proto."""

    model: str
    stream: bool | None = None
    stream_options: CompletionStreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    """Whether the text ends with what stopped it."""
    bad_words: list[str] | None = None
    """Texts whose last token cannot come after their others, as vLLM has it."""
    prompt_logprobs: int | None = None
    """Alternatives told per token of the prompt, as vLLM does; not in a stream."""
    return_token_ids: bool | None = None
    """Whether the answer tells the tokens of prompt and output, as vLLM has it."""
    cache_salt: str | None = None
    prompt_cache_key: str | None = None
    """Requests with the same go to the node that has the others' beginning, where nodes are about as good."""
    priority: int | None = None
    """Whose turn it is where requests wait, as vLLM has it: lower comes earlier."""
    user: str | None = None
    safety_identifier: str | None = None
    """Accepted as `user` is."""
    metadata: dict[str, str] | None = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message; only text is served."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True):
    """What a call called."""

    name: str
    arguments: str
    """A JSON object."""


class ToolCallParam(msgspec.Struct, forbid_unknown_fields=True):
    """A call of an answer that is sent back."""

    id: str
    function: CalledFunction
    type: str = "function"
    index: int | None = None
    """Of a streamed answer; not used."""


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallParam] | None = None
    """Of an assistant."""
    tool_call_id: str | None = None
    """Of a tool's result: the call that it answers."""
    reasoning_content: str | None = None
    """Of an assistant; whether the model sees it again is up to its template."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""


class FunctionParam(msgspec.Struct, forbid_unknown_fields=True):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of an object; null: no parameters."""
    strict: bool | None = None
    """Whether arguments must follow the schema also where the model is free not to call."""


class ToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool; all but functions are left out."""

    type: str
    function: FunctionParam | None = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class ToolChoiceParam(ClosedBody):
    """The function that must be called."""

    type: str
    function: NamedFunction | None = None


class ChatBody(CommonBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolParam] | None = None
    tool_choice: str | ToolChoiceParam | None = None
    """none, auto, required, or the function that must be called; null: auto."""
    parallel_tool_calls: bool | None = None
    """Whether an answer may have several calls; null: yes."""
    add_generation_prompt: bool | None = None
    """Whether the beginning of an answer follows the messages; null: yes."""
    continue_final_message: bool | None = None
    """Whether the last message is left open, to be continued; with `add_generation_prompt` false."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """Handed to chat templates that know it."""


class CompletionBody(CommonBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    """Whether the prompt precedes the output, with its log-probabilities where `logprobs` asks for some."""


MESSAGE_UNSERVED = Unserved(
    promises={"messages[].audio": (), "messages[].function_call": (), "messages[].refusal": ("",)},
    hints={"messages[].annotations": ([],)},
)
"""Of the messages alone, for other endpoints that take them."""
UNSERVED = Unserved(
    promises={
        **PROMISES,
        **MESSAGE_UNSERVED.promises,
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "modalities": (["text"],),
        "suffix": ("",),
    },
    hints={
        **MESSAGE_UNSERVED.hints,
        "prediction": (),
        "prompt_cache_retention": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "verbosity": (),
        "web_search_options": (),
    },
)


class AnswerMessage(msgspec.Struct):
    """What the model said."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    """Left out where there is none, as `reasoning` and `tool_calls`."""
    reasoning: str | None = None
    """The same."""
    tool_calls: list[ToolCallParam] | None = None


class ChatChoice(msgspec.Struct):
    """One answer of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    """stop, length or tool_calls."""
    stop_reason: str | None = None
    """The stop string that ended the text; left out where none did, as vLLM has it."""
    token_ids: list[int] | None = None
    """Of the output, where `return_token_ids` asks for them."""


class ChatAnswer(msgspec.Struct, kw_only=True):
    """A chat completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    baton: PlacementBody
    prompt_logprobs: list[PromptPosition] | None = None
    prompt_token_ids: list[int] | None = None
    """Of the prompt, where `return_token_ids` asks for them."""


class CompletionChoice(msgspec.Struct):
    """One continuation of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: str | None = None
    """As in chat completions, and so are the next three."""
    prompt_logprobs: list[PromptPosition] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class CompletionAnswer(msgspec.Struct):
    """A completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody
    baton: PlacementBody
