"""LlamaIndex's models for servers like OpenAI's."""

from __future__ import annotations

from typing import Any, Literal

import openai
import pydantic
from features import ANSWER, KEY, MODEL, QUESTION, URL, expect, expect_refusal, expect_true, run
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

OPTIONS: dict[str, Any] = {"model": MODEL, "api_base": f"{URL}/v1", "api_key": KEY, "max_retries": 0, "timeout": 60.0}
CHAT = OpenAILike(**OPTIONS, is_chat_model=True, temperature=0, max_tokens=300, context_window=4096)
TURNS = [ChatMessage(role="user", content=QUESTION)]


class Sum(pydantic.BaseModel):
    """Type of the structured answer."""

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


class Weather(pydantic.BaseModel):
    """Arguments of the tool; closed, since a model that knows no tools would add keys until its limit."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Paris", "Oslo"]
    days: int = pydantic.Field(ge=1, le=9)


def get_weather(city: str, days: int) -> str:
    """Tells the weather."""
    return f"sunny in {city} for {days} days"


def create() -> None:
    """A chat, and a completion, which it makes of a chat or of a text."""
    expect(CHAT.chat(TURNS).message.content, ANSWER, "answer")
    expect(CHAT.complete(QUESTION).text, ANSWER, "completion by chat")
    text = OpenAILike(**OPTIONS, is_chat_model=False, temperature=0, max_tokens=4, context_window=4096)
    expect_true(text.complete("What is").text, "no completion of a text")


def stream() -> None:
    """The same text in pieces."""
    expect("".join(part.delta or "" for part in CHAT.stream_chat(TURNS)), ANSWER, "streamed")


def usage() -> None:
    """As OpenAI's answer has it."""
    expect(CHAT.chat(TURNS).raw.usage.completion_tokens, 13, "completion tokens")


def tools() -> None:
    """A function's call."""
    model = OpenAILike(
        **OPTIONS,
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=1,
        max_tokens=400,
        context_window=4096,
        additional_kwargs={"seed": 3},
    )
    function = FunctionTool.from_defaults(get_weather, fn_schema=Weather)
    answer = model.chat_with_tools([function], user_msg=QUESTION, tool_choice="get_weather")
    (call,) = model.get_tool_calls_from_response(answer)
    expect((call.tool_name, call.tool_kwargs.keys()), ("get_weather", {"city", "days"}), "call")


def structured() -> None:
    """A type by a schema of the answer."""
    model = OpenAILike(
        **OPTIONS,
        is_chat_model=True,
        should_use_structured_outputs=True,
        temperature=0,
        max_tokens=300,
        context_window=4096,
    )
    value = model.as_structured_llm(Sum).chat(TURNS).raw
    expect_true(isinstance(value, Sum), f"answer {value!r}")


def errors() -> None:
    """By OpenAI's class, naming what is wrong."""
    expect_refusal(openai.BadRequestError, lambda: CHAT.chat(TURNS, temperature=-1), "temperature")


FEATURES = (create, stream, usage, tools, structured, errors)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
