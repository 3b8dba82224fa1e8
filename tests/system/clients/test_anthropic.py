"""The official Anthropic client, and OpenAI's responses, against a whole Baton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import post

QUESTION = "What is 12 + 30?"
TURN: dict[str, Any] = {"role": "user", "content": QUESTION}


@pytest.fixture(scope="module")
def client(demo_cluster: Cluster) -> Iterator[anthropic.Anthropic]:
    """Return the client as a user makes it."""
    url = demo_cluster.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_message_is_answered_whole_and_streamed(client: anthropic.Anthropic) -> None:
    """The demo model knows the answer, and ends by itself."""
    options: Any = {"model": MODEL_NAME, "max_tokens": 64, "messages": [TURN], "extra_body": {"temperature": 0}}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()

    assert "42" in whole.content[0].text  # type: ignore[union-attr]
    assert "".join(texts) == whole.content[0].text == streamed.content[0].text  # type: ignore[union-attr]
    assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")


def test_counted_tokens_are_those_that_are_used(client: anthropic.Anthropic) -> None:
    """Those of the prefix cache included."""
    count = client.messages.count_tokens(model=MODEL_NAME, messages=[TURN])  # type: ignore[list-item]
    usage = client.messages.create(model=MODEL_NAME, max_tokens=1, messages=[TURN]).usage  # type: ignore[list-item]

    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    """The text ends before it."""
    options: Any = {"model": MODEL_NAME, "max_tokens": 64, "messages": [TURN], "extra_body": {"temperature": 0}}
    message = client.messages.create(**options, stop_sequences=["never", " ="])

    assert message.content[0].text == "12 + 30"  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " =")


def test_a_response_is_answered_whole_and_streamed(demo_cluster: Cluster) -> None:
    """The same text by OpenAI's newer API."""
    options: Any = {"model": MODEL_NAME, "input": QUESTION, "temperature": 0}
    with openai.OpenAI(base_url=demo_cluster.base_url, api_key="none", max_retries=0, timeout=60) as client:
        whole = client.responses.create(**options)
        with client.responses.stream(**options) as stream:
            streamed = stream.get_final_response()

    assert "42" in whole.output_text
    assert (whole.status, streamed.status, streamed.output_text) == ("completed", "completed", whole.output_text)


def test_a_prompt_survives_tokenizing_and_detokenizing(demo_cluster: Cluster) -> None:
    """By the demo model's tokenizer."""
    tokens = post(demo_cluster, "/tokenize", {"prompt": QUESTION, "add_special_tokens": False}).body
    text = post(demo_cluster, "/detokenize", {"tokens": tokens["tokens"]}).body

    assert tokens["max_model_len"] == 4096
    assert text == {"prompt": QUESTION}
