"""POST /v1/chat/completions: from its body to a generation, and from the output to its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from baton.gateway.access.admission import generation_name
from baton.gateway.api.answer import AnswerJob, FinishedChoice, encode, send_answer
from baton.gateway.api.body import (
    FIELD_NAMES,
    check_int32,
    effort_variable,
    num_choices,
    num_logprobs,
    sampling_parameters,
    session_name,
    token_limit,
)
from baton.gateway.api.endpoint import Exchange
from baton.gateway.api.errors import refused, unsupported
from baton.gateway.api.openai.events import CompletionWriter
from baton.gateway.api.openai.logprobs import TokenBytes, chat_logprobs, prompt_positions
from baton.gateway.api.openai.messages import chat_messages, chat_tools
from baton.gateway.api.openai.schema import ChatBody, CommonBody
from baton.gateway.api.structured_output import OutputConstraint, StructuredOutputFields, output_constraint
from baton.gateway.generation.generator import AnswerReader, TextGenerator, answer_reader
from baton.gateway.generation.requests import STRUCTURED_OUTPUT, ChatPrompt, Delta, GenerationRequest, GenerationResult
from baton.text.output_parts import CallArguments, CallStart, Content, OutputPart, Reasoning, joined
from baton.v1.generation_pb2 import SamplingParameters, StructuredOutput


async def answer_chat(generator: TextGenerator, exchange: Exchange) -> None:
    """Answer a chat completion; raise ApiError naming what is not served, BatonError if generating fails."""
    chat: ChatBody = exchange.body
    use, constraint = chat_tools(chat, exchange), OutputConstraint()
    if any(getattr(chat, name) is not None for name in StructuredOutputFields.__struct_fields__):
        constraint = output_constraint(chat)
    prompt = await generator.prepare(
        GenerationRequest(
            request_id=generation_name(exchange.context.request_id),
            model=chat.model,
            prompt=ChatPrompt(
                chat_messages(chat.messages),
                add_generation_prompt=chat.add_generation_prompt is not False,
                continue_final_message=bool(chat.continue_final_message),
                tools=use.offered,
                template_variables=await _template_variables(generator, chat, exchange),
            ),
            sampling=_sampling(chat, constraint.constraint),
            field_names=FIELD_NAMES | {STRUCTURED_OUTPUT: constraint.field},
            stop=stop_strings(chat),
            is_stop_shown=bool(chat.include_stop_str_in_output),
            bad_words=tuple(chat.bad_words or ()),
            cache_salt=chat.cache_salt or "",
            session=session_name(chat.prompt_cache_key),
            priority=chat.priority or 0,
            tool_use=use,
        ),
        exchange.context,
    )
    job = AnswerJob(exchange.context, [prompt], num_choices(chat))
    form = ChatFormat(job, chat, prompt.text.detokenizers.token_bytes, partial(answer_reader, prompt))
    await send_answer(exchange.response, generator, job, form, is_stream=bool(chat.stream))


def stop_strings(body: CommonBody) -> tuple[str, ...]:
    """Return the stop strings of a body."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def completion_sampling(body: CommonBody, constraint: StructuredOutput | None) -> SamplingParameters:
    """Return what chat and text completions say alike of choosing tokens; raise ApiError, 400, for what is wrong."""
    sampling = sampling_parameters(body, constraint)
    if body.prompt_logprobs is not None:
        sampling.prompt_logprob_count = num_logprobs("prompt_logprobs", body.prompt_logprobs)
        refuse_in_stream(body, "prompt_logprobs", "what is told of a prompt")
    return sampling


def refuse_in_stream(body: CommonBody, name: str, what: str) -> None:
    """Refuse what only a whole answer can have; raise ApiError 400 if the answer is to be streamed."""
    if body.stream:
        raise unsupported(name, f"{what} is not served in a stream")


def _sampling(body: ChatBody, constraint: StructuredOutput | None) -> SamplingParameters:
    sampling = completion_sampling(body, constraint)
    if body.max_tokens is not None:
        sampling.max_token_count = token_limit("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise refused("max_tokens", "`max_tokens` and `max_completion_tokens` differ", code="invalid_value")
        sampling.max_token_count = token_limit("max_completion_tokens", body.max_completion_tokens)
    if body.top_logprobs is not None and not body.logprobs:
        raise refused("top_logprobs", "`top_logprobs` needs `logprobs` to be true", code="invalid_value")
    if body.logprobs:
        sampling.top_logprob_count = check_int32("top_logprobs", body.top_logprobs or 0)
    return sampling


async def _template_variables(generator: TextGenerator, chat: ChatBody, exchange: Exchange) -> dict[str, object]:
    given, effort = chat.chat_template_kwargs or {}, chat.reasoning_effort
    if effort is None:
        return given
    known = await generator.template_names(chat.model)
    return {**given, **effort_variable(known, effort, "reasoning_effort", exchange)}


class ChatFormat(CompletionWriter):
    """Writes one chat answer."""

    _CHOICE_END = b'},"logprobs":null,"finish_reason":null}]'

    def __init__(
        self, job: AnswerJob, body: ChatBody, token_bytes: TokenBytes, read: Callable[[], AnswerReader | None]
    ) -> None:
        """Begin an answer. `read` makes what reads one choice's answer; None from it: the text is all."""
        super().__init__(job, "chatcmpl", "chat.completion.chunk", body)
        self._has_logprobs = bool(body.logprobs)
        self._num_prompt_logprobs = body.prompt_logprobs
        self._token_bytes, self._read = token_bytes, read
        self._readers: dict[int, ChoiceReader] = {}

    def start(self, index: int) -> bytes:
        """Return the event with the role."""
        if reader := self._read():
            self._readers[index] = ChoiceReader(reader)
        self._count(index, 0)
        role = b'{"index":%d,"delta":{"role":"assistant","content":""' % index
        ids = self._token_ids(self._prompts[0], b"prompt_token_ids") if index == 0 else b""
        return self._start + role + (self._end[:-3] + ids + b"}\n\n" if ids else self._end)

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice."""
        self._count(index, len(delta.token_ids))
        if index in self._readers:
            return self._read_delta(index, delta)
        logprobs = b"null"
        if self._has_logprobs and delta.logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, self._token_bytes))
        elif not (delta.text or self._has_token_ids):
            return b""
        end = self._end_of(delta, logprobs)
        return b'%b{"index":%d,"delta":{"content":%b%b' % (self._start, index, encode(delta.text), end)

    def finish(self, index: int, result: GenerationResult, results: Sequence[GenerationResult]) -> bytes:
        """Return the event with the finish reason, and what ends the stream."""
        rest, reason = b"", str(result.reason)
        self._count(index, 0)
        if reader := self._readers.get(index):
            rest = self._part_events(index, reader.bodies(reader.answer.finish()), {})
            reason = reader.answer.end(result.reason)
        choice = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"%b}'
        choice %= index, reason.encode(), self._stop_reason(result)
        return rest + self._last_event(index, choice, results)

    def whole(self, choices: Sequence[FinishedChoice]) -> bytes:
        """Return the body of an answer that is not streamed."""
        bodies = [self._whole_choice(index, choice) for index, choice in enumerate(choices)]
        body = self._body(choices, bodies) | {"object": "chat.completion"}
        prompt = choices[0].result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        if self._has_token_ids:
            body["prompt_token_ids"] = list(self._prompts[0])
        return encode(body)

    def _read_delta(self, index: int, delta: Delta) -> bytes:
        told: dict[str, object] = {}
        if self._has_logprobs and delta.logprobs:
            told["logprobs"] = chat_logprobs(delta.logprobs, self._token_bytes)
        if self._has_token_ids:
            told["token_ids"] = list(delta.token_ids)
        reader = self._readers[index]
        return self._part_events(index, reader.bodies(reader.answer.push(delta.text)), told)

    def _part_events(self, index: int, parts: Sequence[DeltaBody], told: Mapping[str, object]) -> bytes:
        """Return one event per part; the first has what is told of tokens, also of those that gave no part yet."""
        if told and not parts:
            parts = [DeltaBody()]
        events = []
        for part in parts:
            choice = {"index": index, "delta": part, "logprobs": None, "finish_reason": None, **told}
            events.append(self._start + encode(choice) + b"]" + self._tail + b"}\n\n")
            told = {}
        return b"".join(events)

    def _whole_choice(self, index: int, choice: FinishedChoice) -> dict[str, object]:
        text, reason = choice.text, str(choice.result.reason)
        message: dict[str, object] = {"role": "assistant", "content": text, "refusal": None}
        if reader := self._read():
            message |= ChoiceReader(reader).message(text)
            reason = reader.end(choice.result.reason)
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs, self._token_bytes) if self._has_logprobs else None,
            "finish_reason": reason,
            **self._further_fields(choice),
        }


class FunctionBody(msgspec.Struct, omit_defaults=True):
    """What a call calls; a stream's first delta of it has the name."""

    arguments: str
    name: str | None = None


class ToolCallBody(msgspec.Struct, omit_defaults=True):
    """A call; later deltas of a stream leave out what the first has said."""

    function: FunctionBody
    index: int | None = None
    id: str | None = None
    type: str | None = None


class DeltaBody(msgspec.Struct, omit_defaults=True):
    """`delta` of a stream's event."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same; some servers and their clients have this name for it."""
    tool_calls: list[ToolCallBody] | None = None


class ChoiceReader:
    """Writes what is read of one choice, streamed or whole: text, reasoning and calls. `answer` reads it."""

    def __init__(self, answer: AnswerReader) -> None:
        self.answer = answer

    def message(self, text: str) -> dict[str, object]:
        """Return the fields of a whole message."""
        parts = joined([*self.answer.push(text), *self.answer.finish()])
        content = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        calls: list[ToolCallBody] = []
        for part in parts:
            if isinstance(part, CallStart):
                calls.append(self._opened_call(part.name))
            elif isinstance(part, CallArguments):
                calls[-1].function.arguments += part.text
        fields: dict[str, object] = {"content": content if content or not calls else None}
        if reasoning:
            fields |= {"reasoning_content": reasoning, "reasoning": reasoning}
        return {**fields, "tool_calls": calls} if calls else fields

    def bodies(self, parts: Sequence[OutputPart]) -> list[DeltaBody]:
        """Return parts as deltas; the ends of calls have none."""
        return [body for part in parts if (body := self._body(part)) is not None]

    def _body(self, part: OutputPart) -> DeltaBody | None:
        match part:
            case Content(text):
                return DeltaBody(content=text)
            case Reasoning(text):
                return DeltaBody(reasoning_content=text, reasoning=text)
            case CallStart(call_index, name):
                call = self._opened_call(name)
                call.index = call_index
                return DeltaBody(tool_calls=[call])
            case CallArguments(call_index, text):
                return DeltaBody(tool_calls=[ToolCallBody(FunctionBody(text), call_index)])
            case _:
                return None

    def _opened_call(self, name: str) -> ToolCallBody:
        return ToolCallBody(FunctionBody("", name), id=self.answer.new_call_id(), type="function")
