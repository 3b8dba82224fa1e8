"""How probable the model found a prompt, through the REST API and the public gRPC API."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from baton.errors import UnavailableError
from baton.gateway.api.openai.completions import CompletionFormat
from baton.gateway.server import RunningGateway
from gateway.fake_cluster import MODEL, FakeCluster, Loop, echo_token, finished, judged, tokens
from gateway.rest import ask
from text.tokenizer_folders import byte_level

PROMPT = list(byte_level()("abc")["input_ids"])
MESSAGES: Any = [{"role": "user", "content": "x"}]


def test_an_echo_with_logprobs_has_those_of_the_prompt_before_those_of_the_output(client: openai.OpenAI) -> None:
    """Null for the first token, as OpenAI's legacy API has it; offsets count the prompt's characters."""
    answer = client.completions.create(model=MODEL, prompt=PROMPT, echo=True, logprobs=1, max_tokens=1)

    (choice,) = answer.choices
    assert choice.text == "abca"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens[:3] == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs[:3] == [None, -1, -2]
    assert choice.logprobs.top_logprobs[:3] == [None, {"a": -0.5}, {"b": -0.5}]
    assert choice.logprobs.text_offset[:3] == [0, 1, 2]


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, PROMPT[::-1], PROMPT[:1]]])
def test_a_prompt_is_scored_without_output(client: openai.OpenAI, prompts: list[list[int]]) -> None:
    """`max_tokens` 0 with `echo`: what evaluation harnesses ask, also of many prompts at once."""
    answer = client.completions.create(model=MODEL, prompt=prompts, echo=True, logprobs=0, max_tokens=0)

    assert [choice.text for choice in answer.choices] == ["abc", "cba", "a"][: len(prompts)]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, -1, -2][: len(prompt)]


def test_an_echo_of_no_output_needs_no_logprobs(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Nothing is scored that nobody asked for."""
    answer = client.completions.create(model=MODEL, prompt=PROMPT, echo=True, max_tokens=0)

    assert (answer.choices[0].text, answer.choices[0].logprobs) == ("abc", None)
    assert not cluster.decodes[0].requests[0].sampling.HasField("prompt_logprob_count")


def test_prompt_logprobs_are_told_as_vllm_tells_them(client: openai.OpenAI) -> None:
    """Per position the token itself with its rank, and the most probable ones; of a choice, or of a chat's answer."""
    text = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 1})
    chat = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body={"prompt_logprobs": 0})

    first, second, third = text.choices[0].model_extra["prompt_logprobs"]  # type: ignore[index]
    a, b, c = map(str, PROMPT)
    assert first is None
    assert second == {
        b: {"logprob": -1, "rank": 1, "decoded_token": "b"},
        a: {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
    }
    assert list(third) == [c, b]
    assert chat.model_extra is not None
    of_chat = chat.model_extra["prompt_logprobs"]
    assert chat.usage is not None
    assert len(of_chat) == chat.usage.prompt_tokens
    assert [len(position or ()) for position in of_chat] == [0] + [1] * (len(of_chat) - 1)


def test_a_scored_prompt_is_placed_where_it_is_decoded(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The router is told so, and not to count on caches: the decision is its own."""
    client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1, extra_body={"prompt_logprobs": 1})
    client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=1)

    scored, plain = cluster.router.requests
    assert (scored.needs_local_prefill, scored.bypass_prefix_cache) == (True, True)
    assert (plain.needs_local_prefill, plain.bypass_prefix_cache) == (False, False)
    assert not cluster.decodes[0].requests[0].bypass_prefix_cache  # what is computed may be cached


def test_a_node_that_dies_while_it_scores_leaves_no_gap_and_no_double(
    client: openai.OpenAI, cluster: FakeCluster
) -> None:
    """The next one begins again; what it repeats is dropped."""

    async def die(request: Any) -> AsyncIterator[Any]:
        yield judged(request, 1, 2)
        raise UnavailableError("the engine is gone")

    async def judge_in_parts(request: Any) -> AsyncIterator[Any]:
        for position in (1, 2):
            yield judged(request, position, position + 1)
        yield tokens(0, [echo_token(request, 0)])
        yield finished(request, "decode-1")

    cluster.decodes[0].script, cluster.decodes[1].script = die, judge_in_parts
    answer = client.completions.create(model=MODEL, prompt=PROMPT, echo=True, logprobs=0, max_tokens=1)

    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.token_logprobs[:3] == [None, -1, -2]


def test_a_node_that_leaves_part_of_a_prompt_out_is_not_believed(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """An error, rather than numbers at the wrong tokens."""

    async def skip(request: Any) -> AsyncIterator[Any]:
        yield judged(request, 2, 3)

    for node in cluster.decodes:
        node.script = skip

    with pytest.raises(openai.APIStatusError):
        client.completions.create(model=MODEL, prompt=PROMPT, echo=True, logprobs=0, max_tokens=1)


def test_what_is_told_of_a_prompt_is_written_beside_the_event_loop(
    gateway: RunningGateway, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds where the prompt is long and every token has alternatives."""
    threads: list[int] = []
    whole = CompletionFormat.whole

    def noted(form: CompletionFormat, *arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return whole(form, *arguments)

    async def own_thread() -> int:
        return threading.get_ident()

    monkeypatch.setattr(CompletionFormat, "whole", noted)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
    assert ask(gateway, "/v1/completions", body | {"prompt_logprobs": 1}).status == 200
    assert ask(gateway, "/v1/completions", body).status == 200

    assert [thread == loop.call(own_thread()) for thread in threads] == [False, True]
