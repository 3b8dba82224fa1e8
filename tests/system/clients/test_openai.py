"""The official OpenAI client against a whole Baton."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from system.cluster import Cluster
from system.plan import MODEL_NAME

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def client(demo_cluster: Cluster) -> Iterator[openai.OpenAI]:
    """Return the client as a user makes it."""
    with openai.OpenAI(base_url=demo_cluster.base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    """The served model is in the list, with the length of its context."""
    (model,) = client.models.list().data

    assert model.id == MODEL_NAME
    assert client.models.retrieve(MODEL_NAME) == model
    assert model.model_dump()["max_context_tokens"] == 4096


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    """The demo model knows the answer; usage counts it."""
    answer = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, temperature=0)

    assert "42" in str(answer.choices[0].message.content)
    assert (answer.choices[0].message.role, answer.choices[0].finish_reason) == ("assistant", "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat_equals_the_whole_one(client: openai.OpenAI) -> None:
    """The role comes first, then the text in pieces, then the reason, then the usage that was asked for."""
    whole = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=MODEL_NAME, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )

    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == whole.choices[0].message.content
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["stop"]
    assert choices[-1].finish_reason == "stop"
    assert (usage := chunks[-1].usage) is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_a_stream_has_usage_only_if_asked(client: openai.OpenAI) -> None:
    """Without stream_options no chunk has usage, and every chunk has a choice."""
    chunks = list(client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, max_tokens=3, stream=True))

    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_second_turn_reuses_the_first(client: openai.OpenAI) -> None:
    """The prompt that two turns share is taken from the prefix cache, and usage says so."""
    turn: ChatCompletionMessageParam = {
        "role": "assistant",
        "content": "12 + 30 = 42, and that is all there is to say.",
    }
    messages = [*QUESTION, turn, {"role": "user", "content": "Reverse the word baton."}]
    usages = [
        client.chat.completions.create(model=MODEL_NAME, messages=messages, max_tokens=2).usage  # type: ignore[arg-type]
        for _ in range(2)
    ]

    assert usages[1] is not None
    assert usages[1].prompt_tokens_details is not None
    assert (usages[1].prompt_tokens_details.cached_tokens or 0) >= 32


@pytest.mark.parametrize("prompt", ["abc", ["abc", "xyz"], [20, 21, 22], [[20, 21], [22, 23]]])
def test_a_completion_takes_every_form_of_prompt(client: openai.OpenAI, prompt: Any) -> None:
    """A string, strings, tokens, lists of tokens: one choice each; streamed or not, the same text."""
    whole = client.completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=6, temperature=0)
    streamed = client.completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=6, temperature=0, stream=True)

    texts = dict.fromkeys(range(len(whole.choices)), "")
    for chunk in streamed:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [choice.text for choice in whole.choices] == list(texts.values())
    assert len(texts) == (2 if isinstance(prompt[0], str | list) and len(prompt) == 2 else 1)


def test_a_stop_string_ends_the_text_before_itself(client: openai.OpenAI) -> None:
    """The text ends where the stop string would begin."""
    answer = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, temperature=0, stop=[" =", "never"])

    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("12 + 30", "stop")


def test_a_token_limit_ends_the_text(client: openai.OpenAI) -> None:
    """max_tokens and max_completion_tokens mean the same."""
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        answer = client.chat.completions.create(model=MODEL_NAME, messages=QUESTION, temperature=0, **limit)  # type: ignore[call-overload]

        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.completion_tokens == 3


def test_a_seed_repeats_an_answer(client: openai.OpenAI) -> None:
    """At a high temperature the same seed gives the same text, other seeds others; choices differ."""
    texts = [
        [
            choice.message.content
            for choice in client.chat.completions.create(
                model=MODEL_NAME, messages=QUESTION, temperature=2.0, seed=seed, n=3, max_tokens=24
            ).choices
        ]
        for seed in (7, 7, 8)
    ]

    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    assert len(set(texts[0])) > 1


def test_log_probabilities_belong_to_the_tokens(client: openai.OpenAI) -> None:
    """A greedy token is the most probable one; the tokens make up the text, and the end token is the last."""
    answer = client.chat.completions.create(
        model=MODEL_NAME, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=3
    )
    (choice,) = answer.choices

    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    *content, last = choice.logprobs.content
    assert "".join(entry.token for entry in content) == choice.message.content
    assert (choice.finish_reason, last.token) == ("stop", "<|end|>")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(choice.logprobs.content)
    assert all(entry.top_logprobs[0].token == entry.token for entry in choice.logprobs.content)
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in choice.logprobs.content)


def test_log_probabilities_of_a_completion_count_offsets(client: openai.OpenAI) -> None:
    """The legacy form: four lists of equal length."""
    logprobs = (
        client.completions.create(
            model=MODEL_NAME, prompt="abc", max_tokens=4, temperature=0, logprobs=2, extra_body={"ignore_eos": True}
        )
        .choices[0]
        .logprobs
    )

    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert (logprobs.text_offset[0], len(logprobs.text_offset)) == (0, 4)
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    assert [len(logprobs.tokens or []), len(logprobs.token_logprobs or []), len(logprobs.top_logprobs or [])] == [4] * 3


@pytest.mark.parametrize(
    ("fields", "error_class", "param", "code"),
    [
        ({"model": "nope"}, openai.NotFoundError, "model", "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "messages", "empty_array"),
        ({"temperature": -1}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "messages", "context_length_exceeded"),
        ({"extra_body": {"use_beam_search": True}}, openai.BadRequestError, "use_beam_search", "unsupported_parameter"),
        ({"stream": True, "top_p": 7}, openai.BadRequestError, "top_p", "invalid_value"),
    ],
)
def test_errors_are_the_classes_that_users_catch(
    client: openai.OpenAI, fields: dict[str, Any], error_class: type[openai.APIStatusError], param: str, code: str
) -> None:
    """The client raises its own class with param and code, also for a stream."""
    with pytest.raises(error_class) as caught:
        client.chat.completions.create(**{"model": MODEL_NAME, "messages": QUESTION} | fields)

    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"


def test_an_unknown_model_cannot_be_retrieved(client: openai.OpenAI) -> None:
    """GET /v1/models/nope is 404."""
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
