"""The bodies that the REST API takes.

Fields that OpenAI has and Baton does not serve are declared, to refuse them by name and to accept values that ask for
nothing.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from baton.gateway.api.errors import ApiError, refused
from baton.gateway.api.structured_output_schema import ResponseFormat, StructuredOutputs

MAX_CHOICES = 16
MAX_MESSAGES = 2048
MAX_PROMPTS = 64


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is sent."""

    include_usage: bool | None = None
    """Whether a last chunk reports the usage."""
    include_obfuscation: bool | None = None
    """Accepted; nothing is obfuscated."""


class CommonBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take; bounds are those of generation.proto."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
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
    prompt_logprobs: int | None = None
    """Alternatives told per token of the prompt, as vLLM does; not in a stream."""
    response_format: ResponseFormat | None = None
    """Form of the output; null: any text."""
    structured_outputs: StructuredOutputs | None = None
    """Form of the output, as vLLM has it."""
    guided_json: dict[str, Any] | str | None = None
    """`structured_outputs.json` by an older name, as are the next three."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    """Whose turn it is where requests wait, as vLLM has it: lower comes earlier."""
    user: str | None = None
    metadata: dict[str, str] | None = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message; only text is served."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    refusal: Any = None


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
    """One message of a conversation.

    `refusal` and what follows it come with answers that are sent back, and must be empty.
    """

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
    refusal: Any = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


class FunctionParam(msgspec.Struct, forbid_unknown_fields=True):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of an object; null: no parameters."""
    strict: bool | None = None
    """Whether arguments must follow the schema also where the model is free not to call."""


class ToolParam(msgspec.Struct, forbid_unknown_fields=True):
    """A tool; only functions are served."""

    type: str
    function: FunctionParam | None = None
    custom: Any = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function by its name."""

    name: str


class ToolChoiceParam(msgspec.Struct, forbid_unknown_fields=True):
    """The function that must be called."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: Any = None
    custom: Any = None


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
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """Handed to chat templates that know it; others refuse it."""
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    verbosity: Any = None
    web_search_options: Any = None
    service_tier: Any = None
    store: Any = None


class CompletionBody(CommonBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    """Whether the prompt precedes the output, with its log-probabilities where `logprobs` asks for some."""
    suffix: Any = None
    best_of: Any = None


AnyBody = TypeVar("AnyBody", bound=msgspec.Struct)
Body = TypeVar("Body", bound=CommonBody)

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "best_of": (1,),
}
"""Fields that are not served, and values of them (beside null) that ask for nothing."""

_MESSAGE_EXTRAS = (
    "refusal",
    "annotations",
    "audio",
    "function_call",
)


def decode_body(data: bytes, body_type: type[Body]) -> Body:
    """Return the body of a completion.

    Raises:
        ApiError: 400, naming the parameter that is missing, unknown, of a wrong type or not served.
    """
    body = decode_json(data, body_type)
    _refuse_unserved(body)
    return body


def decode_json(data: bytes, body_type: type[AnyBody]) -> AnyBody:
    """Return a body of any endpoint; what its fields may hold is left to check.

    Raises:
        ApiError: 400, naming the parameter that is missing, unknown or of a wrong type.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"The body is not valid UTF-8: {error.reason} at byte {error.start}") from error
    try:
        with _no_collection():
            return msgspec.json.decode(data, type=body_type)
    except msgspec.ValidationError as error:
        raise _schema_error(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}") from error


def refuse_unserved_fields(body: msgspec.Struct, neutral_values: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse fields that are not served, unless their value asks for nothing.

    Args:
        body: A body.
        neutral_values: Values by field, beside null, that ask for nothing.

    Raises:
        ApiError: 400, naming the first that does.
    """
    for name, neutral in neutral_values.items():
        value = getattr(body, name, None)
        if value is not None and not any(value == each and type(value) is type(each) for each in neutral):
            raise refused(name, f"Unsupported parameter: `{name}` is not served here", code="unsupported_parameter")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector out: it would scan a growing body of a million arrays again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _refuse_unserved(body: CommonBody) -> None:
    refuse_unserved_fields(body, NEUTRAL_VALUES)
    if body.stream_options is not None and not body.stream:
        raise refused("stream_options", "`stream_options` is only allowed when `stream` is true", code="invalid_value")
    num_choices = 1 if body.n is None else body.n
    if not 1 <= num_choices <= MAX_CHOICES:
        raise refused(
            "n", f"Invalid value for `n`: expected 1 to {MAX_CHOICES}, got {num_choices}", code="invalid_value"
        )
    refuse_message_extras(getattr(body, "messages", ()))


def refuse_message_extras(messages: Iterable[Message]) -> None:
    """Refuse what messages carry beside text.

    Raises:
        ApiError: 400, naming the first field that is not empty.
    """
    for index, message in enumerate(messages):
        for name in _MESSAGE_EXTRAS:
            if getattr(message, name) not in (None, []):
                param = f"messages[{index}].{name}"
                raise refused(param, f"Unsupported parameter: `{param}`", code="unsupported_parameter")


def _schema_error(text: str) -> ApiError:
    """Return the answer to a schema violation, from msgspec's words for it."""
    path = match[1] if (match := re.search(r" - at `\$\.?(.*)`$", text)) else ""
    problem = text.partition(" - at ")[0]
    if match := re.match(r"Object contains unknown field `(.*)`", problem):
        param = f"{path}.{match[1]}" if path else match[1]
        return refused(param, f"Unrecognized request argument supplied: {param}", code="unknown_parameter")
    if match := re.match(r"Object missing required field `(.*)`", problem):
        param = f"{path}.{match[1]}" if path else match[1]
        return refused(param, f"Missing required parameter: `{param}`", code="missing_required_parameter")
    return refused(path or "body", f"Invalid type for `{path or 'body'}`: {problem}", code="invalid_type")
