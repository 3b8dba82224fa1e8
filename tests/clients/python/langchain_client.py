"""LangChain's chat models for OpenAI and Anthropic, and its agent's loop."""

from __future__ import annotations

from typing import Any, Literal

import openai
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
    expect_weather,
    run,
)
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

OPTIONS: dict[str, Any] = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "timeout": 60}
CHAT = ChatOpenAI(**OPTIONS, temperature=0, max_tokens=300, stream_usage=True)


class Sum(pydantic.BaseModel):
    """Type of the structured answer."""

    model_config = pydantic.ConfigDict(extra="forbid")

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


class Place(pydantic.BaseModel):
    """Arguments of the tool; closed, since a model that knows no tools would add keys until its limit."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Paris", "Oslo"]
    days: int = pydantic.Field(ge=1, le=9)


@tool(args_schema=Place)
def get_weather(city: str, days: int) -> str:
    """Tells the weather."""
    return f"sunny in {city} for {days} days"


def create() -> None:
    """Invoked, and several at once."""
    expect(CHAT.invoke(QUESTION).content, ANSWER, "answer")
    expect([message.content for message in CHAT.batch([QUESTION] * 3)], [ANSWER] * 3, "batch")


def stream() -> None:
    """The same text in pieces."""
    expect("".join(str(chunk.content) for chunk in CHAT.stream(QUESTION)), ANSWER, "streamed")


def usage() -> None:
    """The stream's equals the whole answer's."""
    whole = CHAT.invoke(QUESTION).usage_metadata
    streamed = [chunk.usage_metadata for chunk in CHAT.stream(QUESTION) if chunk.usage_metadata]
    expect(streamed[-1]["total_tokens"], whole["total_tokens"], "total tokens")


def logprobs() -> None:
    """One for each token."""
    answer = CHAT.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    num_tokens = answer.usage_metadata["output_tokens"]
    expect(len(answer.response_metadata["logprobs"]["content"]), num_tokens, "log-probabilities")


def tools() -> None:
    """A bound tool is called, and takes its result to an answer."""
    model = ChatOpenAI(**OPTIONS, temperature=1, seed=3, max_tokens=300)
    message = model.bind_tools([get_weather], tool_choice="get_weather", strict=True).invoke(QUESTION)
    (call,) = message.tool_calls
    expect_true(call["args"]["city"] in ("Paris", "Oslo"), f"arguments {call['args']}")
    turns = [HumanMessage(QUESTION), message, ToolMessage("sunny", tool_call_id=call["id"])]
    expect_true(CHAT.invoke(turns).content, "no answer to the result")


def structured() -> None:
    """A type by a schema of the answer, and by a tool."""
    for method in ("json_schema", "function_calling"):
        value = CHAT.with_structured_output(Sum, method=method).invoke(QUESTION)
        expect_true(isinstance(value, Sum), f"{method}: {value!r}")


def responses() -> None:
    """By OpenAI's newer API, whole and streamed."""
    model = ChatOpenAI(**OPTIONS, temperature=0, use_responses_api=True)
    expect(model.invoke(QUESTION).text, ANSWER, "answer")
    expect("".join(str(chunk.text) for chunk in model.stream(QUESTION)), ANSWER, "streamed")


def messages() -> None:
    """By Anthropic's API: whole, streamed, and with a tool."""
    model = ChatAnthropic(model=MODEL, base_url=URL, api_key=KEY, max_tokens=300, max_retries=0, timeout=60)
    asked: Any = {"extra_body": {"temperature": 0}}
    expect(model.invoke(QUESTION, **asked).content, ANSWER, "answer")
    expect("".join(str(chunk.text) for chunk in model.stream(QUESTION, **asked)), ANSWER, "streamed")
    schema = {"name": "get_weather", "description": "Tells the weather.", "input_schema": WEATHER}
    (call,) = model.bind_tools([schema], tool_choice="get_weather").invoke(QUESTION).tool_calls
    expect_weather(call["args"])


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


def errors() -> None:
    """By OpenAI's class, naming what is wrong."""
    expect_refusal(openai.BadRequestError, lambda: CHAT.invoke(QUESTION, temperature=-1), "temperature")


def cached() -> str:
    """The second turn of a conversation finds the first in the prefix cache."""
    first = CHAT.invoke(LONG_QUESTION)
    turns = [HumanMessage(LONG_QUESTION), AIMessage(first.content), HumanMessage(QUESTION)]
    used = CHAT.invoke(turns).usage_metadata
    return cached_share(used["input_token_details"].get("cache_read"), used["input_tokens"])


FEATURES = (create, stream, usage, logprobs, tools, structured, responses, messages, errors, cached)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
