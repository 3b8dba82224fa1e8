"""pydantic-ai's models for OpenAI's chat and responses and for Anthropic's messages."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pydantic
from features import (
    ANSWER,
    KEY,
    LONG_QUESTION,
    MODEL,
    QUESTION,
    URL,
    cached_share,
    expect,
    expect_refusal,
    expect_true,
    run,
)
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
CHAT = OpenAIChatModel(MODEL, provider=PROVIDER)
SETTINGS: Any = {"temperature": 0, "max_tokens": 300}


class Sum(pydantic.BaseModel):
    """Type of the structured answer."""

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


class Weather(pydantic.BaseModel):
    """Type of the answer; closed, since a model that knows no tools would add keys until its limit."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Paris", "Oslo"]
    days: int = pydantic.Field(ge=1, le=9)


def create() -> None:
    """An agent's run."""
    expect(Agent(CHAT, model_settings=SETTINGS).run_sync(QUESTION).output, ANSWER, "answer")


def stream() -> None:
    """The same text in pieces."""
    expect(asyncio.run(_stream()), ANSWER, "streamed")


async def _stream() -> str:
    async with Agent(CHAT, model_settings=SETTINGS).run_stream(QUESTION) as result:
        return "".join([text async for text in result.stream_text(delta=True, debounce_by=None)])


def usage() -> None:
    """Tokens of the prompt and of the answer."""
    used = Agent(CHAT, model_settings=SETTINGS).run_sync(QUESTION).usage
    used = used() if callable(used) else used
    expect(used.output_tokens, 13, "output tokens")
    expect_true(used.input_tokens > 10, f"input tokens {used.input_tokens}")


def tools() -> None:
    """A type by the call of a tool, whole and streamed."""
    agent = Agent(CHAT, output_type=ToolOutput(Weather), model_settings={**SETTINGS, "temperature": 1, "seed": 3})
    expect_true(isinstance(agent.run_sync(QUESTION).output, Weather), "no weather")
    expect_true(isinstance(asyncio.run(_stream_output(agent)), Weather), "no weather streamed")


async def _stream_output(agent: Any) -> Any:
    async with agent.run_stream(QUESTION) as result:
        return await result.get_output()


def structured() -> None:
    """A type by a schema of the answer."""
    agent = Agent(CHAT, output_type=NativeOutput(Sum), model_settings=SETTINGS)
    expect_true(isinstance(agent.run_sync(QUESTION).output, Sum), "no sum")


def responses() -> None:
    """By the newer API, as text and as a type."""
    model = OpenAIResponsesModel(MODEL, provider=PROVIDER)
    expect(Agent(model, model_settings=SETTINGS).run_sync(QUESTION).output, ANSWER, "answer")
    agent = Agent(model, output_type=NativeOutput(Sum), model_settings=SETTINGS)
    expect_true(isinstance(agent.run_sync(QUESTION).output, Sum), "no sum")


def messages() -> None:
    """By Anthropic's API, as text and as a type by a call."""
    model = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY))
    settings: Any = {"max_tokens": 300, "extra_body": {"temperature": 0}}
    expect(Agent(model, model_settings=settings).run_sync(QUESTION).output, ANSWER, "answer")
    agent = Agent(model, output_type=ToolOutput(Weather), model_settings=settings)
    expect_true(isinstance(agent.run_sync(QUESTION).output, Weather), "no weather")


def errors() -> None:
    """By the client's own class, naming what is wrong."""
    wrong = Agent(CHAT, model_settings={"temperature": -1})
    expect_refusal(ModelHTTPError, lambda: wrong.run_sync(QUESTION), "400", "temperature")


def cached() -> str:
    """The second turn of a conversation finds the first in the prefix cache."""
    agent = Agent(CHAT, model_settings=SETTINGS)
    first = agent.run_sync(LONG_QUESTION)
    used = agent.run_sync(QUESTION, message_history=first.all_messages()).usage
    used = used() if callable(used) else used
    return cached_share(used.cache_read_tokens, used.input_tokens)


FEATURES = (create, stream, usage, tools, structured, responses, messages, errors, cached)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
