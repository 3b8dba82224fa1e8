"""LiteLLM's SDK, by its providers for OpenAI's API, vLLM's and Anthropic's."""

from __future__ import annotations

import json
from typing import Any

import litellm
from features import (
    ANSWER,
    KEY,
    LONG_QUESTION,
    MODEL,
    PARAMETERS,
    QUESTION,
    SUM,
    URL,
    cached_share,
    expect,
    expect_refusal,
    expect_sum,
    expect_weather,
    run,
)

litellm.telemetry = False
TURNS: list[Any] = [{"role": "user", "content": QUESTION}]
CHAT: dict[str, Any] = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": KEY,
    "temperature": 0,
    "max_tokens": 300,
    "messages": TURNS,
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}


def create() -> None:
    """By both of its providers for this API."""
    for provider in ("hosted_vllm", "openai"):
        answer = litellm.completion(**{**CHAT, "model": f"{provider}/{MODEL}"})
        expect(answer.choices[0].message.content, ANSWER, provider)


def stream() -> None:
    """The same text in pieces."""
    chunks = litellm.completion(**CHAT, stream=True)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER, "streamed")


def usage() -> None:
    """The stream's equals the whole answer's."""
    whole = litellm.completion(**CHAT).usage
    chunks = list(litellm.completion(**CHAT, stream=True, stream_options={"include_usage": True}))
    used = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    expect(used[-1].total_tokens, whole.total_tokens, "total tokens")


def logprobs() -> None:
    """One for each token."""
    answer = litellm.completion(**CHAT, logprobs=True, top_logprobs=2)
    expect(len(answer.choices[0].logprobs.content), answer.usage.completion_tokens, "log-probabilities")


def tools() -> None:
    """A named tool's call; `hosted_vllm` would drop `additionalProperties`, and this model add keys until its limit."""
    choice = {"type": "function", "function": {"name": "get_weather"}}
    asked = {**CHAT, "model": f"openai/{MODEL}"}
    answer = litellm.completion(**asked, tools=[{"type": "function", "function": FUNCTION}], tool_choice=choice)
    (call,) = answer.choices[0].message.tool_calls
    expect_weather(json.loads(call.function.arguments))


def structured() -> None:
    """By a schema of the answer."""
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SUM, "strict": True}}
    expect_sum(json.loads(litellm.completion(**CHAT, response_format=form).choices[0].message.content))


def responses() -> None:
    """OpenAI's newer API."""
    asked: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "temperature": 0}
    answer = litellm.responses(**asked, input=QUESTION)
    expect(answer.output[0].content[0].text, ANSWER, "answer")


def messages() -> None:
    """Anthropic's API, called as such."""
    asked: dict[str, Any] = {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": KEY, "max_tokens": 64}
    answer = litellm.completion(**asked, messages=TURNS, temperature=0)
    expect(answer.choices[0].message.content, ANSWER, "answer")


def errors() -> None:
    """By its own class, naming what is wrong."""
    wrong = {**CHAT, "temperature": -1}
    expect_refusal(litellm.BadRequestError, lambda: litellm.completion(**wrong), "temperature")


def cached() -> str:
    """The second turn of a conversation finds the first in the prefix cache."""
    turns: list[Any] = [{"role": "user", "content": LONG_QUESTION}]
    first = litellm.completion(**{**CHAT, "messages": turns}).choices[0].message.content
    turns += [{"role": "assistant", "content": first}, *TURNS]
    used = litellm.completion(**{**CHAT, "messages": turns}).usage
    return cached_share(used.prompt_tokens_details.cached_tokens, used.prompt_tokens)


FEATURES = (create, stream, usage, logprobs, tools, structured, responses, messages, errors, cached)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
