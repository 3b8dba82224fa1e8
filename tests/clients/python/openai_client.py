"""The official OpenAI client for Python."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pydantic
from features import (
    ANSWER,
    KEY,
    LONG_QUESTION,
    MODEL,
    PARAMETERS,
    QUESTION,
    URL,
    cached_share,
    expect,
    expect_idle,
    expect_refusal,
    expect_true,
    expect_weather,
    run,
)

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)
ASKED: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 64}
CHAT: dict[str, Any] = {**ASKED, "messages": [{"role": "user", "content": QUESTION}]}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}
TOOLS: dict[str, Any] = {
    **CHAT,
    "max_tokens": 300,
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
}


class Sum(pydantic.BaseModel):
    """Type of the structured answer."""

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


def create() -> None:
    """A chat completion, a text completion, and the client for asyncio."""
    choice = client.chat.completions.create(**CHAT).choices[0]
    expect((choice.message.content, choice.finish_reason), (ANSWER, "stop"), "answer")
    text = client.completions.create(model=MODEL, prompt="What is", max_tokens=4, temperature=0)
    expect(text.usage.completion_tokens, 4, "completion tokens")
    expect(asyncio.run(_create_async()), ANSWER, "answer to asyncio")


async def _create_async() -> str | None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0) as other:
        return (await other.chat.completions.create(**CHAT)).choices[0].message.content


def stream() -> None:
    """The same text in pieces, and by the client's helper."""
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER, "streamed")
    with client.chat.completions.stream(**CHAT) as events:
        expect(events.get_final_completion().choices[0].message.content, ANSWER, "final completion")


def usage() -> None:
    """The last chunk's equals the whole answer's; every chunk has one where that is asked for."""
    whole = client.chat.completions.create(**CHAT).usage
    asked: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options=asked))
    expect(chunks[-1].usage.total_tokens, whole.total_tokens, "total tokens")
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    expect(len(counts), len(chunks), "chunks with a usage")
    expect(counts, sorted(counts), "counts that grow")


def logprobs() -> None:
    """One for each token, the end token too, of chats and texts."""
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    expect(len(content), answer.usage.completion_tokens, "log-probabilities of the chat")
    expect({len(entry.top_logprobs) for entry in content}, {2}, "alternatives")
    asked: Any = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    text = client.completions.create(model=MODEL, prompt=f"What is 17 + 39? {ANSWER}", **asked)
    expect(len(text.choices[0].logprobs.token_logprobs), text.usage.total_tokens, "log-probabilities of the text")


def tools() -> None:
    """A call, whole, streamed, and of a declared type; its result is taken."""
    message = client.chat.completions.create(**TOOLS).choices[0].message
    call = message.tool_calls[0]
    expect_weather(json.loads(call.function.arguments))
    with client.chat.completions.stream(**TOOLS) as events:
        streamed = events.get_final_completion().choices[0].message.tool_calls[0]
    expect(streamed.function.arguments, call.function.arguments, "streamed arguments")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns = [*TOOLS["messages"], message, result]
    final = client.chat.completions.create(**{**TOOLS, "messages": turns, "tool_choice": "none"}).choices[0]
    expect(final.message.tool_calls, None, "calls where none may be")


def structured() -> None:
    """A pydantic type by `parse`."""
    parsed = client.chat.completions.parse(**{**CHAT, "max_tokens": 300}, response_format=Sum).choices[0].message.parsed
    expect_true(isinstance(parsed, Sum), f"parsed {parsed!r}")


def responses() -> None:
    """The newer API, whole, streamed, with a tool, and with a type."""
    asked: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0}
    expect(client.responses.create(**asked).output_text, ANSWER, "answer")
    with client.responses.stream(**asked) as events:
        expect(events.get_final_response().output_text, ANSWER, "streamed answer")
    parsed = client.responses.parse(**asked, text_format=Sum).output_parsed
    expect_true(isinstance(parsed, Sum), f"parsed {parsed!r}")


def response_tools() -> None:
    """A call by the newer API, streamed."""
    tool: Any = {"type": "function", **FUNCTION}
    choice: Any = {"type": "function", "name": "get_weather"}
    with client.responses.stream(model=MODEL, input=QUESTION, tools=[tool], tool_choice=choice) as events:
        (item,) = events.get_final_response().output
    expect_weather(json.loads(item.arguments))


def models() -> None:
    """The list, and one by its name."""
    expect([model.id for model in client.models.list()], [MODEL], "models")
    expect(client.models.retrieve(MODEL).id, MODEL, "model")


def errors() -> None:
    """Each by the client's own class, naming what is wrong."""
    expect_refusal(openai.NotFoundError, lambda: client.chat.completions.create(**{**CHAT, "model": "gpt"}), "gpt")
    wrong = {**CHAT, "temperature": -1}
    expect_refusal(openai.BadRequestError, lambda: client.chat.completions.create(**wrong), "temperature")
    refused = {"model": MODEL, "input": "text"}
    expect_refusal(openai.NotFoundError, lambda: client.embeddings.create(**refused), "embeddings")


def hints() -> None:
    """What the official clients may send as hints is accepted."""
    asked: Any = {"prompt_cache_key": "k", "safety_identifier": "s", "verbosity": "low", "store": False}
    expect(client.chat.completions.create(**CHAT, **asked).choices[0].message.content, ANSWER, "answer")


def abort() -> None:
    """A stream that is closed ends its request."""
    long = {**CHAT, "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    with client.chat.completions.create(**long, stream=True) as chunks:
        for _, _chunk in zip(range(4), chunks, strict=False):
            pass
    expect_idle()


def cached() -> str:
    """The second turn of a conversation finds the first in the prefix cache."""
    turns: list[Any] = [{"role": "user", "content": LONG_QUESTION}]
    first = client.chat.completions.create(**ASKED, messages=turns).choices[0].message
    turns += [{"role": "assistant", "content": first.content}, {"role": "user", "content": QUESTION}]
    used = client.chat.completions.create(**ASKED, messages=turns).usage
    return cached_share(used.prompt_tokens_details.cached_tokens, used.prompt_tokens)


FEATURES = (
    create,
    stream,
    usage,
    logprobs,
    tools,
    structured,
    responses,
    response_tools,
    models,
    errors,
    hints,
    abort,
    cached,
)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
