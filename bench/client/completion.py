"""One request to an OpenAI-compatible server: its body, and its answer as a stream with the time of each event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.client.http_client import HttpClient, HttpError
from bench.workloads.dataset import Prompt


class SseParser:
    """Splits a stream into events; a line may end with LF or CRLF and be cut anywhere.

    Invariant: `_rest` holds the bytes of the unfinished line, `_data` the data lines of the unfinished event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """Take bytes and return the events that they complete, in order: `data:` lines joined by line feeds."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events


Clock = Callable[[], float]
"""Seconds of a monotonic clock."""

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"


def clock_from_now() -> Clock:
    """Return a clock that is 0 when this is called."""
    origin = time.perf_counter()
    return lambda: time.perf_counter() - origin


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request of a run asks for besides its prompt and length."""

    model: str
    temperature: float = 0.0
    ignore_eos: bool = True
    """Whether to ask for exactly `max_tokens` tokens; not every server takes the field."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body, as they are."""

    def body(self, max_tokens: int, **fields: object) -> bytes:
        """Return the body of a streaming request with the given fields besides."""
        body: dict[str, object] = {"model": self.model, "max_tokens": max_tokens, "temperature": self.temperature}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **fields, **self.extra}
        if self.ignore_eos:
            body["ignore_eos"] = True
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True)
class Answer:
    """What a stream has brought; times by the caller's clock."""

    sent_seconds: float = 0.0
    token_seconds: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_completion_tokens: int | None = None
    """None where the server reports no usage."""
    placement: dict[str, Any] | None = None
    """What the server says of the request's way through it (`baton` of Baton's last chunk)."""
    is_done: bool = False
    """Whether the stream has said that it is complete: by `[DONE]`, or by the reason why its choice ended."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens as the server counts, or events where it does not."""
        return len(self.token_seconds) if self.num_completion_tokens is None else self.num_completion_tokens

    def take_chunk(self, chunk: dict[str, Any], seconds: float) -> None:
        """Take a parsed chunk that was read at `seconds`; raise HttpError if the chunk reports an error."""
        if chunk.get("error"):
            raise HttpError(f"error in the stream: {json.dumps(chunk['error'])[:300]}")
        for choice in chunk.get("choices") or ():
            text = _output(choice)
            self.is_done = self.is_done or bool(choice.get("finish_reason"))  # some servers send no `[DONE]`
            # Tokens may have no text (half a character); the end is then the first sign of output.
            if text or (choice.get("finish_reason") and not self.token_seconds):
                self.token_seconds.append(seconds)
                self.text.append(text)
        self.placement = chunk.get("baton") or self.placement
        usage = chunk.get("usage")
        if usage:
            self.num_prompt_tokens = usage["prompt_tokens"]
            self.num_completion_tokens = usage["completion_tokens"]
            self.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def stream_answer(client: HttpClient, path: str, body: bytes, clock: Clock, answer: Answer) -> None:
    """Fill `answer` from a request's stream, part by part; raise HttpError if it fails or stops short, or OSError."""
    parser = SseParser()
    async with client.connection() as connection:
        answer.sent_seconds = clock()
        response = await connection.request("POST", path, body)
        if response.status != 200:
            await response.read_ok()
        async for piece in response.pieces():
            seconds = clock()
            for data in parser.feed(piece):
                if data == "[DONE]":
                    answer.is_done = True
                else:
                    answer.take_chunk(json.loads(data), seconds)
    if not answer.is_done:
        raise HttpError("the stream ended before finish_reason and [DONE]")


def request_fields(path: str, history: Sequence[tuple[str, str]], prompt: Prompt) -> dict[str, object]:
    """Return the part of a body that asks for `prompt` after `history`, pairs of (question, answer).

    Raises ValueError if token ids are to be sent to a chat endpoint, or after a history of text.
    """
    if not isinstance(prompt, str):
        if path != COMPLETIONS_PATH or history:
            raise ValueError("token ids can be sent to /v1/completions only, and in sessions of one turn only")
        return {"prompt": list(prompt)}
    if path == COMPLETIONS_PATH:
        return {"prompt": "".join(question + answer for question, answer in history) + prompt}
    messages = []
    for question, answer in history:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": [*messages, {"role": "user", "content": prompt}]}


def _output(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    tool_calls = delta.get("tool_calls")
    text = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
    return text or (json.dumps(tool_calls) if tool_calls else "")


async def describe_server(client: HttpClient) -> dict[str, object]:
    """Return the server's models and version, as far as it tells."""
    described: dict[str, object] = {}
    for name, path in (("models", "/v1/models"), ("version", "/version")):
        try:
            described[name] = json.loads(await client.get_json_text(path))
        except (HttpError, OSError, ValueError) as error:
            described[name] = f"unknown: {error}"
    return described


async def first_model(client: HttpClient) -> str:
    """Return the id of the server's first model; raise HttpError if it cannot be asked, ValueError if it has none."""
    models = json.loads(await client.get_json_text("/v1/models"))["data"]
    if not models:
        raise ValueError("the server has no model")
    return str(models[0]["id"])
