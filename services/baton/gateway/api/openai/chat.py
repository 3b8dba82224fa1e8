"""The parts of one choice of a chat completion, in OpenAI's shapes.

Answers of POST /v1/chat/completions. What stays the same in every event of a stream is encoded once.

POST /v1/chat/completions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from baton.gateway.access.request_context import RequestContext, generation_name
from baton.gateway.api.answer import FinishedChoice, Job, answer_stream, answer_whole, encode
from baton.gateway.api.errors import refused
from baton.gateway.api.openai.logprobs import ChatLogprobs, TokenBytes, chat_logprobs, prompt_positions
from baton.gateway.api.openai.messages import chat_messages, chat_tools
from baton.gateway.api.openai.schema import ChatBody, decode_body
from baton.gateway.api.sampling import chat_sampling, stop_strings
from baton.gateway.api.structured_output import output_constraint
from baton.gateway.api.usage import PlacementBody, UsageBody
from baton.gateway.generation.generator import TextGenerator
from baton.gateway.generation.requests import (
    ChatPrompt,
    Delta,
    EndReason,
    GenerationRequest,
    GenerationResult,
    PreparedPrompt,
)
from baton.gateway.generation.tools import ToolUse, new_tool_call_id
from baton.gateway.http.response import HttpResponse
from baton.text.output_format import ModelOutputFormat
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallArguments, CallStart, Content, OutputPart, Reasoning, joined


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
    """Reads one choice, streamed or whole."""

    def __init__(self, parser: OutputParser, tool_format: str) -> None:
        self._parser = parser
        self._tool_format = tool_format
        self._has_calls = False

    def push(self, text: str) -> list[DeltaBody]:
        """Return what became known by the next text."""
        return self._bodies(self._parser.push(text)) if text else []

    def finish(self) -> list[DeltaBody]:
        """Return what was held back; no more text comes."""
        return self._bodies(self._parser.finish())

    def finish_reason(self, reason: EndReason) -> str:
        """Return why the choice ended, in OpenAI's words; after all text was read."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason

    def message(self, text: str) -> dict[str, object]:
        """Return the fields of a whole message."""
        parts = self._parser.read(text)
        content = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        calls: list[ToolCallBody] = []
        for part in parts:
            if isinstance(part, CallStart):
                calls.append(self._opened_call(part.name))
            elif isinstance(part, CallArguments):
                calls[-1].function.arguments += part.text
        self._has_calls = bool(calls)
        fields: dict[str, object] = {"content": content if content or not calls else None}
        if reasoning:
            fields |= {"reasoning_content": reasoning, "reasoning": reasoning}
        return {**fields, "tool_calls": calls} if calls else fields

    def _bodies(self, parts: Sequence[OutputPart]) -> list[DeltaBody]:
        return [body for part in joined(parts) if (body := self._body(part)) is not None]

    def _body(self, part: OutputPart) -> DeltaBody | None:
        match part:
            case Content(text):
                return DeltaBody(content=text)
            case Reasoning(text):
                return DeltaBody(reasoning_content=text, reasoning=text)
            case CallStart(call_index, name):
                self._has_calls = True
                call = self._opened_call(name)
                call.index = call_index
                return DeltaBody(tool_calls=[call])
            case CallArguments(call_index, text):
                return DeltaBody(tool_calls=[ToolCallBody(FunctionBody(text), call_index)])
            case _:
                return None

    def _opened_call(self, name: str) -> ToolCallBody:
        return ToolCallBody(FunctionBody("", name), id=new_tool_call_id(self._tool_format), type="function")


ReadAnswer: TypeAlias = Callable[[], ChoiceReader | None]
"""Makes what reads one choice; None: its text is all there is."""


def read_answer(reader: ModelOutputFormat, prompt: PreparedPrompt, use: ToolUse) -> ChoiceReader | None:
    """Return what reads one choice of an answer."""
    parser = reader.parser(use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel)
    return ChoiceReader(parser, reader.output_format.tool_format) if parser is not None else None


class ChatFormat:
    """Writes one chat answer.

    An event is `start index middle content end`: only index and content differ between the events of a stream.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        created_seconds: int,
        *,
        has_logprobs: bool,
        num_prompt_logprobs: int | None = None,
        has_usage: bool,
        token_bytes: TokenBytes,
        read: ReadAnswer = lambda: None,
    ) -> None:
        """Begin an answer.

        Args:
            answer_id: Name of the answer.
            model: Served name.
            created_seconds: Unix time.
            has_logprobs: Whether they were asked for.
            num_prompt_logprobs: Alternatives told per token of the prompt; None: no log-probabilities of it.
            has_usage: Whether a stream's last event reports the usage.
            token_bytes: Gives the bytes of a token.
            read: Makes what reads one choice's answer; None from it: the text is all.
        """
        self._common = {"id": answer_id, "created": created_seconds, "model": model}
        self._has_logprobs = has_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._token_bytes = token_bytes
        self._opened: set[int] = set()
        self._read = read
        self._readings: dict[int, ChoiceReader] = {}
        fields = encode(
            {"id": answer_id, "object": "chat.completion.chunk", "created": created_seconds, "model": model}
        )
        self._start = b"data: " + fields[:-1] + b',"choices":['
        self._tail = b',"usage":null' if has_usage else b""
        self._end = b'},"logprobs":null,"finish_reason":null}]' + self._tail + b"}\n\n"

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return the events for new output of a choice, the role before the first."""
        opening = b"" if index in self._opened else self._open(index)
        if index in self._readings:
            return opening + self._read_delta(index, delta)
        if self._has_logprobs and delta.logprobs:
            logprobs = encode(chat_logprobs(delta.logprobs, self._token_bytes))
            end = b'},"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail + b"}\n\n"
        elif delta.text:
            end = self._end
        else:
            return opening
        content = encode(delta.text)
        return b'%b%b{"index":%d,"delta":{"content":%b%b' % (opening, self._start, index, content, end)

    def finish(self, index: int, result: GenerationResult, placement: PlacementBody | None) -> bytes:
        """Return the event with the finish reason."""
        opening = b"" if index in self._opened else self._open(index)
        baton = b',"baton":' + encode(placement) if placement is not None else b""
        reason: str = result.reason
        if reading := self._readings.get(index):
            opening += self._part_events(index, reading.finish(), None)
            reason = reading.finish_reason(result.reason)
        choice = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}' % (index, reason.encode())
        return opening + self._start + choice + b"]" + self._tail + baton + b"}\n\n"

    def usage(self, usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the event that reports the usage."""
        return self._start + b'],"usage":' + encode(usage) + b',"baton":' + encode(placement) + b"}\n\n"

    def whole(self, choices: Sequence[FinishedChoice], usage: UsageBody, placement: PlacementBody) -> bytes:
        """Return the body of an answer that is not streamed."""
        body = {
            **self._common,
            "object": "chat.completion",
            "choices": [self._whole_choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
            "baton": placement,
        }
        prompt = choices[0].result.prompt
        if self._num_prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_positions(prompt, self._num_prompt_logprobs, self._token_bytes)
        return encode(body)

    def _open(self, index: int) -> bytes:
        self._opened.add(index)
        if reading := self._read():
            self._readings[index] = reading
        role = b'{"index":%d,"delta":{"role":"assistant","content":""' % index
        return self._start + role + self._end

    def _read_delta(self, index: int, delta: Delta) -> bytes:
        logprobs = None
        if self._has_logprobs and delta.logprobs:
            logprobs = chat_logprobs(delta.logprobs, self._token_bytes)
        return self._part_events(index, self._readings[index].push(delta.text), logprobs)

    def _part_events(self, index: int, parts: Sequence[DeltaBody], logprobs: ChatLogprobs | None) -> bytes:
        """Return one event per part; the first has the log-probabilities, also of tokens that gave no part yet."""
        if logprobs is not None and not parts:
            parts = [DeltaBody()]
        events = []
        for part in parts:
            choice = {"index": index, "delta": part, "logprobs": logprobs, "finish_reason": None}
            events.append(self._start + encode(choice) + b"]" + self._tail + b"}\n\n")
            logprobs = None
        return b"".join(events)

    def _whole_choice(self, index: int, choice: FinishedChoice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
        reason: str = choice.result.reason
        if reading := self._read():
            message |= reading.message(choice.text)
            reason = reading.finish_reason(choice.result.reason)
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(choice.logprobs, self._token_bytes) if self._has_logprobs else None,
            "finish_reason": reason,
        }


async def answer_chat(generator: TextGenerator, call: RequestContext, response: HttpResponse) -> None:
    """Answer a chat completion.

    Raises:
        ApiError: Naming the parameter that cannot be served.
        BatonError: If it cannot be generated.
    """
    chat = decode_body(call.body, ChatBody)
    use, form = chat_tools(chat), output_constraint(chat)
    prompt = await generator.prepare(
        GenerationRequest(
            request_id=generation_name(call.request_id),
            model=chat.model,
            prompt=ChatPrompt(
                chat_messages(chat.messages), tools=use.offered, template_variables=_template_variables(generator, chat)
            ),
            sampling=chat_sampling(chat, form.constraint),
            constraint_field=form.field,
            stop=stop_strings(chat),
            cache_salt=chat.cache_salt or "",
            priority=chat.priority or 0,
            tool_use=use,
        )
    )
    has_usage = bool(chat.stream_options and chat.stream_options.include_usage)
    answer_format = ChatFormat(
        f"chatcmpl-{call.request_id}",
        chat.model,
        int(time.time()),
        has_logprobs=bool(chat.logprobs),
        num_prompt_logprobs=chat.prompt_logprobs,
        has_usage=has_usage,
        token_bytes=generator.token_bytes,
        read=partial(read_answer, generator.preparation.reader, prompt, use),
    )
    job = Job(call, [prompt], chat.n or 1)
    if chat.stream:
        await answer_stream(response, generator, job, answer_format, has_usage=has_usage)
    else:
        await answer_whole(response, generator, job, answer_format)


def _template_variables(generator: TextGenerator, chat: ChatBody) -> dict[str, object]:
    variables = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        if "reasoning_effort" not in generator.preparation.reader.template_names:
            text = "Unsupported parameter: `reasoning_effort`: the chat template of this model does not know it"
            raise refused("reasoning_effort", text, code="unsupported_parameter")
        variables["reasoning_effort"] = chat.reasoning_effort
    return variables
