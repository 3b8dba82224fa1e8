"""Forms of the output on a whole Baton, as clients ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from jsonschema import Draft202012Validator
from openai.types.chat import ChatCompletionMessageParam

from system.cluster import Cluster
from system.plan import MODEL_NAME

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 12 + 30?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer", "minimum": 0, "maximum": 99},
        "größe": {"enum": ["klein", "groß"]},
    },
    "required": ["answer", "größe"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}


class Sum(pydantic.BaseModel):
    """What the official client makes a schema of, and reads back."""

    model_config = pydantic.ConfigDict(extra="forbid")

    answer: int = pydantic.Field(ge=0, le=99)
    is_even: bool


@pytest.fixture(scope="module")
def client(demo_cluster: Cluster) -> Iterator[openai.OpenAI]:
    """Return the client as a user makes it."""
    with openai.OpenAI(base_url=demo_cluster.base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_chat_answers_in_a_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    """Both ways the same, and each of several choices."""
    options: Any = {"model": MODEL_NAME, "messages": QUESTION, "response_format": FORMAT, "seed": 5, "max_tokens": 300}

    whole = client.chat.completions.create(**options, n=3)
    stream = client.chat.completions.create(**options, stream=True)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    texts = [str(choice.message.content) for choice in whole.choices]
    assert streamed == texts[0]
    for choice, text in zip(whole.choices, texts, strict=True):
        assert choice.finish_reason == "stop"
        Draft202012Validator(SCHEMA).validate(json.loads(text))


def test_the_official_client_parses_a_model_of_its_own(client: openai.OpenAI) -> None:
    """Its schema comes from a pydantic class, by both APIs."""
    chat = client.chat.completions.parse(model=MODEL_NAME, messages=QUESTION, response_format=Sum, max_tokens=300)
    response = client.responses.parse(model=MODEL_NAME, input="What is 12 + 30?", text_format=Sum, store=False)

    assert isinstance(chat.choices[0].message.parsed, Sum)
    assert isinstance(response.output_parsed, Sum)


def test_one_of_several_answers_is_chosen(client: openai.OpenAI) -> None:
    """By the field that vLLM has; in text completions too."""
    completion = client.completions.create(
        model=MODEL_NAME, prompt="12 + 30 =", extra_body={"guided_choice": ["41", "42"]}, temperature=0
    )

    assert completion.choices[0].text in ("41", "42")
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_schema_that_cannot_be_enforced_is_refused_by_name(client: openai.OpenAI, is_stream: bool) -> None:
    """With the keyword; nothing is generated."""
    format_: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {"type": "null"}}}}

    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, response_format=format_, stream=is_stream)

    assert caught.value.param == "response_format"
    assert '["not"]' in caught.value.message
