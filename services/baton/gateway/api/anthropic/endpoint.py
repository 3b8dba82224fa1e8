"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec

from baton.errors import InvalidFieldError
from baton.gateway.access.admission import generation_name
from baton.gateway.api.answer import AnswerJob, send_answer
from baton.gateway.api.anthropic.answer import MessageFormat
from baton.gateway.api.anthropic.input import conversation
from baton.gateway.api.anthropic.schema import ConversationBody, CountAnswer, MessagesBody, ToolDefinition
from baton.gateway.api.body import FIELD_NAMES, effort_variable, sampling_parameters, token_limit
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import invalid, refused
from baton.gateway.api.structured_output import message_constraint
from baton.gateway.api.usage import ignored_body
from baton.gateway.generation.generator import TextGenerator, answer_parser
from baton.gateway.generation.preparation import ContextLengthError
from baton.gateway.generation.requests import STRUCTURED_OUTPUT, ChatPrompt, GenerationRequest
from baton.gateway.generation.tools import NO_PARAMETERS, ToolFields, ToolUse, choose, choose_named, read_tools
from baton.text.tools import Tool

_FIELD_NAMES = FIELD_NAMES | {"stop": "stop_sequences"}
_TOOL_FIELDS = ToolFields("name", "input_schema", "strict")
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"xhigh": "high", "max": "high"}
"""Efforts beyond what chat templates know."""


async def answer_messages(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer a conversation; raise ApiError naming the parameter that is not served, BatonError if generating fails."""
    body: MessagesBody = exchange.body
    context, use = exchange.context, _tool_use(body, exchange)
    constraint = message_constraint(body.output_config.format if body.output_config else None)
    request = GenerationRequest(
        request_id=generation_name(context.request_id),
        model=body.model,
        prompt=await _prompt(generator, exchange, use),
        sampling=sampling_parameters(body, constraint.constraint),
        # Clients must name a limit, and name what their models can at most: what the context has no room for is cut.
        default_max_tokens=token_limit("max_tokens", body.max_tokens),
        stop=tuple(body.stop_sequences or ()),
        field_names=_FIELD_NAMES | {STRUCTURED_OUTPUT: constraint.field},
        tool_use=use,
    )
    try:
        prompt = await generator.prepare(request, context)
    except ContextLengthError as error:  # in the words at which Claude Code compacts its conversation
        problem = f"prompt is too long: {error.excess}"
        raise refused(error.field, problem, code="context_length_exceeded") from error
    form = MessageFormat(context, body, len(prompt.token_ids), answer_parser(prompt))
    await send_answer(exchange.response, generator, AnswerJob(context, [prompt]), form, is_stream=bool(body.stream))


async def answer_count_tokens(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer with the number of a conversation's tokens; raise ApiError or BatonError if it cannot be tokenized."""
    body: ConversationBody = exchange.body
    prompt = await _prompt(generator, exchange, _tool_use(body, exchange))
    tokenization = await generator.preparation.tokenize(body.model, prompt)
    context, num_tokens = exchange.context, len(tokenization.token_ids)
    context.num_prompt_tokens = num_tokens
    exchange.response.send(200, msgspec.json.encode(CountAnswer(num_tokens, ignored_body(context))))


async def _prompt(generator: TextGenerator, exchange: Exchange, use: ToolUse) -> ChatPrompt:
    """Return the conversation as chat templates know it, the system's text first; an answer at its end is continued."""
    body: ConversationBody = exchange.body
    is_begun = bool(body.messages) and body.messages[-1].role == "assistant"
    return ChatPrompt(
        conversation(body),
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        tools=use.offered,
        template_variables=_template_variables(await generator.template_names(body.model), exchange, body),
    )


def _tool_use(body: ConversationBody, exchange: Exchange) -> ToolUse:
    """Return a body's tools, Anthropic's aside, and use; raise ApiError or InvalidFieldError naming what is bad."""
    tools = read_tools(body.tools, partial(_tool, exchange), _TOOL_FIELDS)
    choice = body.tool_choice
    use = ToolUse(tools, is_parallel=not (choice and choice.disable_parallel_tool_use), fields=_TOOL_FIELDS)
    if choice is None:
        return use
    if choice.type == "tool" and choice.name is not None:
        return choose_named(use, choice.name, "tool_choice.name")
    if choice.type not in _TOOL_CHOICES:
        raise InvalidFieldError("tool_choice.type", "expected auto, any, none, or tool with a name")
    if choice.name is not None:
        raise InvalidFieldError("tool_choice.name", "expected only with type tool")
    return choose(use, _TOOL_CHOICES[choice.type])


def _tool(exchange: Exchange, param: str, tool: ToolDefinition) -> Tool | None:
    if tool.type not in (None, "custom"):
        exchange.ignore_tool(param, tool.type)
        return None
    return Tool(tool.name, tool.input_schema or NO_PARAMETERS, tool.description, is_strict=bool(tool.strict))


def _template_variables(known: Collection[str], exchange: Exchange, body: ConversationBody) -> dict[str, object]:
    """Return what the template, which reads known names, is told of thinking; a budget of tokens is a hint."""
    effort = body.output_config.effort if body.output_config else None
    variables = effort_variable(known, _EFFORTS.get(effort or "", effort), "output_config.effort", exchange)
    if body.thinking is None or body.thinking.type == "adaptive":
        return variables
    if body.thinking.type not in ("enabled", "disabled"):
        raise invalid("thinking.type", f"expected adaptive, enabled or disabled, got `{body.thinking.type[:64]}`")
    is_enabled = body.thinking.type == "enabled"
    return variables | ({"enable_thinking": is_enabled} if "enable_thinking" in known else {})
