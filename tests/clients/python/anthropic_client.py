"""The official Anthropic client for Python."""

from __future__ import annotations

from typing import Any

import anthropic
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

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=60)
ASKED: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "extra_body": {"temperature": 0}}
TURN: dict[str, Any] = {"role": "user", "content": QUESTION}
MESSAGE: dict[str, Any] = {**ASKED, "messages": [TURN]}
TOOL: dict[str, Any] = {"name": "get_weather", "description": "Tells the weather.", "input_schema": PARAMETERS}


class Sum(pydantic.BaseModel):
    """Type of the structured answer."""

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


def create() -> None:
    """A message."""
    message = client.messages.create(**MESSAGE)
    expect((message.content[0].text, message.stop_reason), (ANSWER, "end_turn"), "answer")


def stream() -> None:
    """The same text in pieces."""
    with client.messages.stream(**MESSAGE) as events:
        expect("".join(events.text_stream), ANSWER, "streamed")
        expect(events.get_final_message().stop_reason, "end_turn", "reason")


def usage() -> None:
    """The stream's equals the whole message's, and the prompt's the counted one's."""
    whole = client.messages.create(**MESSAGE).usage
    with client.messages.stream(**MESSAGE) as events:
        streamed = events.get_final_message().usage
    expect(streamed.output_tokens, whole.output_tokens, "output tokens")
    counted = client.messages.count_tokens(model=MODEL, messages=[TURN]).input_tokens
    expect(whole.input_tokens + (whole.cache_read_input_tokens or 0), counted, "input tokens")


def tools() -> None:
    """A call, whole and streamed; its result is taken."""
    asked = {**MESSAGE, "max_tokens": 300, "tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}
    message = client.messages.create(**asked)
    (call,) = message.content
    expect_weather(call.input)
    with client.messages.stream(**asked) as events:
        expect(events.get_final_message().content[0].input, call.input, "streamed input")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [TURN, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    final = client.messages.create(**{**asked, "messages": turns, "tool_choice": {"type": "none"}})
    expect({block.type for block in final.content}, {"text"}, "blocks where no call may be")


def structured() -> None:
    """A pydantic type by `parse`."""
    parsed = client.messages.parse(**{**MESSAGE, "max_tokens": 300}, output_format=Sum).parsed_output
    expect_true(isinstance(parsed, Sum), f"parsed {parsed!r}")


def models() -> None:
    """The list in Anthropic's shape, and one by its name."""
    (model,) = client.models.list()
    expect(
        (model.id, model.type, bool(model.display_name), bool(model.created_at)), (MODEL, "model", True, True), "model"
    )
    expect(client.models.retrieve(MODEL).id, MODEL, "model")


def errors() -> None:
    """Each by the client's own class, naming what is wrong."""
    expect_refusal(anthropic.NotFoundError, lambda: client.messages.create(**{**MESSAGE, "model": "gpt"}), "gpt")
    wrong = {**MESSAGE, "extra_body": {"temperature": -1}}
    expect_refusal(anthropic.BadRequestError, lambda: client.messages.create(**wrong), "temperature")
    expect_refusal(anthropic.NotFoundError, lambda: client.get("/v1/nowhere", cast_to=dict), "'type': 'error'")


def hints() -> None:
    """What agents send as hints is accepted."""
    asked: Any = {
        "temperature": 0,
        "context_management": {"edits": []},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    }
    expect(client.messages.create(**{**MESSAGE, "extra_body": asked}).content[0].text, ANSWER, "answer")


def abort() -> None:
    """A stream that is closed ends its request."""
    long = {**MESSAGE, "max_tokens": 3000, "extra_body": {"temperature": 0, "ignore_eos": True}}
    with client.messages.create(**long, stream=True) as chunks:
        for _, _chunk in zip(range(4), chunks, strict=False):
            pass
    expect_idle()


def cached() -> str:
    """The second turn of a conversation finds the first in the prefix cache."""
    turns: list[Any] = [{"role": "user", "content": LONG_QUESTION}]
    first = client.messages.create(**ASKED, messages=turns)
    turns += [{"role": "assistant", "content": first.content}, TURN]
    used = client.messages.create(**ASKED, messages=turns).usage
    return cached_share(used.cache_read_input_tokens, used.input_tokens + (used.cache_read_input_tokens or 0))


FEATURES = (create, stream, usage, tools, structured, models, errors, hints, abort, cached)

if __name__ == "__main__":
    run({feature.__name__: feature for feature in FEATURES})
