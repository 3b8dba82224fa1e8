"""instructor, in its modes by tools, by a schema, and by Anthropic's tools."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import instructor
import openai
import pydantic
from features import KEY, MODEL, QUESTION, URL, expect_refusal, expect_true, run

OPENAI = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=60)
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 400,
    "max_retries": 0,
    "messages": [{"role": "user", "content": QUESTION}],
}


class Weather(pydantic.BaseModel):
    """Type of the answer; closed, since a model that knows no tools would add keys until its limit."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Paris", "Oslo"]
    days: int = pydantic.Field(ge=1, le=9)


def tools() -> None:
    """By the call of a tool."""
    _expect_weather(_client(instructor.Mode.TOOLS).create(response_model=Weather, seed=3, **ASKED))


def structured() -> None:
    """By a schema of the answer."""
    _expect_weather(_client(instructor.Mode.JSON_SCHEMA).create(response_model=Weather, seed=3, **ASKED))


def stream() -> None:
    """Parts of the type while it comes."""
    parts = list(_client(instructor.Mode.JSON_SCHEMA).create_partial(response_model=Weather, seed=3, **ASKED))
    expect_true(len(parts) > 1, f"{len(parts)} parts")
    Weather.model_validate(parts[-1].model_dump())


def messages() -> None:
    """By the call of a tool of Anthropic's API."""
    client = instructor.from_anthropic(
        anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60), mode=instructor.Mode.ANTHROPIC_TOOLS
    )
    _expect_weather(client.create(response_model=Weather, **ASKED))


def errors() -> None:
    """Naming what is wrong."""
    call: Any = _client(instructor.Mode.JSON_SCHEMA).create
    expect_refusal(Exception, lambda: call(response_model=Weather, temperature=-1, **ASKED), "temperature")


def _client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(OPENAI, mode=mode)


def _expect_weather(value: object) -> None:
    expect_true(isinstance(value, Weather), f"answer {value!r}")


FEATURES = (stream, tools, structured, messages, errors)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
