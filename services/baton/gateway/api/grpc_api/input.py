"""From the messages of the public gRPC API to what the gateway's core takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from baton.errors import InvalidFieldError, check_range
from baton.gateway.access.admission import RequestContext, generation_name
from baton.gateway.api.body import MAX_CHOICES, session_name
from baton.gateway.generation.requests import (
    STRUCTURED_OUTPUT,
    ChatPrompt,
    GenerationRequest,
    Prompt,
    TextPrompt,
    TokenPrompt,
    client_name,
)
from baton.gateway.generation.tools import (
    MAX_MESSAGES,
    NO_PARAMETERS,
    NO_TOOLS,
    ChatTurn,
    ToolFields,
    ToolMode,
    ToolUse,
    call_of_answer,
    choose,
    choose_named,
    json_object,
    parsed_arguments,
    read_tools,
    template_message,
)
from baton.text.tokenizer import Message
from baton.text.tools import Tool
from baton.v1 import generation_service_pb2 as wire
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput

Input: TypeAlias = wire.GenerateRequest | wire.TokenizeRequest | wire.CountTokensRequest
"""What has a text or a conversation."""

_TOOL_FIELDS = ToolFields("name", "parameters", "strict")
_MODES: Mapping[int, ToolMode] = {
    wire.TOOL_MODE_UNSPECIFIED: "auto",
    wire.TOOL_MODE_AUTO: "auto",
    wire.TOOL_MODE_NONE: "none",
    wire.TOOL_MODE_REQUIRED: "required",
}
_SAMPLING_NAMES = {name: f"sampling.{name}" for name in SamplingParameters.DESCRIPTOR.fields_by_name}
_FORM_NAMES = {
    f"{STRUCTURED_OUTPUT}.{name}": f"sampling.{STRUCTURED_OUTPUT}.{name}"
    for name in StructuredOutput.DESCRIPTOR.fields_by_name
}
_CONVERSATION_NAMES = {
    name: f"conversation.{name}" for name in ("messages", "tools", "tool_choice", "continue_final_message")
} | {"chat_template_kwargs": "conversation.template_arguments"}
_PROMPT_NAMES = {"text": "text", "conversation": "conversation.messages", "tokens": "tokens.token_ids"}
"""What is to blame for a bad prompt, by the input that was given."""


def generation_request(
    request: wire.GenerateRequest,
    asked: RequestContext,
    template_names: Collection[str],
    *,
    timeout_seconds: float | None,
) -> GenerationRequest:
    """Return what is to be generated.

    `asked` learns what is left out; the client gives up after `timeout_seconds`, None: never. Raises InvalidFieldError
    naming the field that cannot be served.
    """
    check_range("choice_count", request.choice_count, 0, MAX_CHOICES)
    use = _tool_use(request.conversation) if request.WhichOneof("input") == "conversation" else None
    return GenerationRequest(
        request_id=generation_name(asked.request_id),
        model=request.model,
        prompt=prompt_of(request, asked, template_names, use=use or NO_TOOLS),
        sampling=request.sampling,
        stop=tuple(request.stop),
        is_stop_shown=request.include_stop_in_text,
        cache_salt=request.cache_salt,
        session=session_name(request.prompt_cache_key),
        priority=request.priority,
        timeout_seconds=timeout_seconds,
        field_names=_field_names(request),
        tool_use=use,
    )


def prompt_of(
    request: Input, asked: RequestContext, template_names: Collection[str], *, use: ToolUse | None = None
) -> Prompt:
    """Return the prompt of a request; see `generation_request`."""
    adds_special = None
    if isinstance(request, wire.TokenizeRequest) and request.HasField("add_special_tokens"):
        adds_special = request.add_special_tokens
    match request.WhichOneof("input"):
        case "text":
            return TextPrompt(request.text, add_special_tokens=adds_special is not False)
        case "tokens":
            assert isinstance(request, wire.GenerateRequest)
            return TokenPrompt(list(request.tokens.token_ids))
        case "conversation":
            prompt = _chat_prompt(request.conversation, asked, template_names, use or _tool_use(request.conversation))
            return prompt._replace(add_special_tokens=bool(adds_special))
        case _:
            kinds = [field.name for field in request.DESCRIPTOR.oneofs_by_name["input"].fields]
            raise InvalidFieldError("input", f"expected {', '.join(kinds[:-1])} or {kinds[-1]}")


@contextmanager
def in_words_of(request: Input) -> Iterator[None]:
    """Name fields as the request does, in errors of a core that knows no request of it."""
    try:
        yield
    except InvalidFieldError as error:
        raise error.renamed(client_name(error.field, _field_names(request))) from error


def _field_names(request: Input) -> Mapping[str, str]:
    """Return what a request calls what the core names in errors."""
    blamed = _PROMPT_NAMES[request.WhichOneof("input") or "text"]
    names = {**_SAMPLING_NAMES, **_CONVERSATION_NAMES, STRUCTURED_OUTPUT: ""}
    if isinstance(request, wire.GenerateRequest) and request.sampling.HasField(STRUCTURED_OUTPUT):
        names |= {**_FORM_NAMES, STRUCTURED_OUTPUT: f"sampling.{STRUCTURED_OUTPUT}"}
    return names | {"prompt": blamed, "messages": blamed, "tokens": blamed}


def _chat_prompt(
    conversation: wire.Conversation, asked: RequestContext, template_names: Collection[str], use: ToolUse
) -> ChatPrompt:
    messages = conversation.messages
    if not 1 <= len(messages) <= MAX_MESSAGES:
        problem = f"expected 1 to {MAX_MESSAGES} messages, got {len(messages)}"
        raise InvalidFieldError("conversation.messages", problem)
    variables = json_object("conversation.template_arguments", conversation.template_arguments)
    if conversation.reasoning_effort:
        if "reasoning_effort" in template_names:
            variables["reasoning_effort"] = conversation.reasoning_effort
        else:
            asked.ignored.append("conversation.reasoning_effort")
    begins = conversation.add_generation_prompt or not conversation.HasField("add_generation_prompt")
    return ChatPrompt(
        tuple(_message(f"conversation.messages[{index}]", message) for index, message in enumerate(messages)),
        add_generation_prompt=begins,
        continue_final_message=conversation.continue_final_message,
        tools=use.offered,
        template_variables=variables,
    )


def _message(param: str, message: wire.ChatMessage) -> Message:
    calls = [
        call_of_answer(call.id, call.name, parsed_arguments(f"{param}.tool_calls[{index}].arguments", call.arguments))
        for index, call in enumerate(message.tool_calls)
    ]
    turn = ChatTurn(
        role=message.role,
        content=message.content or ("" if not calls else None),
        name=message.name or None,
        calls=calls,
        tool_call_id=message.tool_call_id or None,
        reasoning=message.reasoning,
    )
    return template_message(param, turn)


def _tool_use(conversation: wire.Conversation) -> ToolUse:
    try:
        tools = read_tools(conversation.tools, _tool, _TOOL_FIELDS)
        is_parallel = conversation.parallel_tool_calls or not conversation.HasField("parallel_tool_calls")
        use, choice = ToolUse(tools, is_parallel=is_parallel, fields=_TOOL_FIELDS), conversation.tool_choice
        if choice.WhichOneof("choice") == "name":
            return choose_named(use, choice.name, "tool_choice.name")
        if choice.mode not in _MODES:
            raise InvalidFieldError("tool_choice.mode", f"expected a value of ToolMode, got {choice.mode}")
        return choose(use, _MODES[choice.mode])
    except InvalidFieldError as error:
        raise error.renamed(f"conversation.{error.field}") from error


def _tool(param: str, tool: wire.Tool) -> Tool:
    parameters = json_object(f"{param}.parameters", tool.parameters) or NO_PARAMETERS
    return Tool(tool.name, parameters, tool.description or None, is_strict=tool.strict)
